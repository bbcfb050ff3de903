import java.io.*;
import java.net.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.SQLConf$;

/**
 * Evaluates steps of a query with Spark's own classes, for the Python tasks of one executor.
 *
 * Janino compiles these files when the process starts, so there is no jar. Janino knows neither
 * lambdas nor generic classes. Each connection is a thread with its own steps; whatever decides
 * stays in Python.
 *
 * A request is: int operation, int step, int count, then `count` fields, each as int length and
 * bytes. The answer is: int status, int length, bytes.
 */
public class Evaluator {
  static final int PREPARE = 1, RUN = 2, PING = 3;
  static final int OK = 0, FAILED = 1, OUT_OF_MEMORY = 2;

  static final ThreadLocal SETTINGS = new ThreadLocal();
  static final AtomicInteger CLIENTS = new AtomicInteger();

  /** Arguments: the path of the socket, the process to live with, idle seconds before the end. */
  public static void main(String[] args) throws Exception {
    SQLConf$.MODULE$.setSQLConfGetter(new scala.runtime.AbstractFunction0() {
      public Object apply() {
        if (SETTINGS.get() == null) SETTINGS.set(new SQLConf());
        return SETTINGS.get();
      }
    });
    ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    Path unready = Paths.get(args[0] + ".new", new String[0]);
    server.bind(UnixDomainSocketAddress.of(unready));
    Watch watch = new Watch(Long.parseLong(args[1]), 1000000000L * Long.parseLong(args[2]));
    watch.setDaemon(true);
    watch.start();
    // Nobody can connect to a socket that does not accept yet.
    Files.move(unready, Paths.get(args[0], new String[0]), new CopyOption[] { StandardCopyOption.REPLACE_EXISTING });
    while (true) {
      SocketChannel channel = server.accept();
      CLIENTS.incrementAndGet();
      Client client = new Client(channel);
      client.setDaemon(true);
      client.start();
    }
  }

  static scala.collection.immutable.Seq seq(List list) {
    return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
  }

  static List list(scala.collection.Iterable items) {
    return new ArrayList(scala.jdk.javaapi.CollectionConverters.asJavaCollection(items));
  }

  /** Ends this process when its executor has ended, or when it has had no client for long. */
  static class Watch extends Thread {
    private final ProcessHandle executor; private final long mostIdle; private long used = System.nanoTime();

    Watch(long pid, long mostIdle) {
      super("watch");
      this.executor = handle(pid);
      this.mostIdle = mostIdle;
    }

    /** Janino calls no static methods of interfaces. */
    static ProcessHandle handle(long pid) {
      try {
        Object found = ProcessHandle.class.getMethod("of", new Class[] { long.class }).invoke(null, new Object[] { Long.valueOf(pid) });
        return (ProcessHandle) ((Optional) found).orElse(null);
      } catch (ReflectiveOperationException error) { throw new IllegalStateException(error); }
    }

    public void run() {
      while (executor != null && executor.isAlive()) {
        if (CLIENTS.get() > 0) used = System.nanoTime();
        if (System.nanoTime() - used > mostIdle) break;
        try { Thread.sleep(250); } catch (InterruptedException again) { }
      }
      Runtime.getRuntime().halt(0);
    }
  }

  /** One connection of a task. */
  static class Client extends Thread {
    private final SocketChannel channel; private final List steps = new ArrayList();
    private final Map settings = new HashMap();

    Client(SocketChannel channel) { super("client"); this.channel = channel; }

    public void run() {
      try {
        DataInputStream in = new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Channels.newOutputStream(channel), 1 << 16));
        while (true) {
          int operation;
          try { operation = in.readInt(); } catch (EOFException end) { return; }
          int step = in.readInt();
          byte[][] fields = new byte[in.readInt()][];
          for (int i = 0; i < fields.length; i++) {
            fields[i] = new byte[in.readInt()];
            in.readFully(fields[i]);
          }
          int status = OK; byte[] answer;
          try {
            answer = answer(operation, step, fields);
          } catch (OutOfMemoryError error) {
            fields = null;
            status = OUT_OF_MEMORY;
            answer = error.toString().getBytes("UTF-8");
          } catch (Throwable error) {
            status = FAILED;
            answer = text(error).getBytes("UTF-8");
          }
          out.writeInt(status); out.writeInt(answer.length); out.write(answer); out.flush();
          // What other threads hold may be broken. The tasks start another evaluator.
          if (status == OUT_OF_MEMORY) Runtime.getRuntime().halt(3);
        }
      } catch (IOException gone) {
      } finally {
        for (int i = 0; i < steps.size(); i++) ((Step) steps.get(i)).close();
        CLIENTS.decrementAndGet();
        try { channel.close(); } catch (IOException closed) { }
      }
    }

    private byte[] answer(int operation, int number, byte[][] fields) throws Exception {
      if (operation == PING) return new byte[0];
      if (operation == PREPARE) {
        SETTINGS.set(settings(string(fields[1])));
        Thread.currentThread().setContextClassLoader(Jars.loader(string(fields[2])));
        Step made = Step.make(string(fields[0]), fields);
        made.settings = SETTINGS.get();
        made.loader = Thread.currentThread().getContextClassLoader();
        steps.add(made);
        return new byte[0];
      }
      Step step = (Step) steps.get(number);
      SETTINGS.set(step.settings);
      Thread.currentThread().setContextClassLoader(step.loader);
      return step.run(fields);
    }

    /** The session's settings: lines of keys and values, in turn, with "\n" as a backslash and n. */
    private SQLConf settings(String text) {
      SQLConf made = (SQLConf) settings.get(text);
      if (made != null) return made;
      made = new SQLConf();
      String[] lines = text.split("\n", -1);
      for (int i = 0; i + 1 < lines.length; i += 2) {
        String value = lines[i + 1].replace("\\n", "\n").replace("\\\\", "\\");
        // A setting of an extension that is not there cannot matter here.
        try { made.setConfString(lines[i], value); } catch (IllegalArgumentException unknown) { }
      }
      settings.put(text, made);
      return made;
    }

    /** The error's class and message. Errors that Spark does not word get the place as well. */
    private static String text(Throwable error) {
      String condition = "";
      if (error instanceof org.apache.spark.SparkThrowable) {
        condition = ((org.apache.spark.SparkThrowable) error).getCondition();
        return (condition == null ? "" : condition) + "\n" + error.getMessage();
      }
      StringWriter trace = new StringWriter();
      error.printStackTrace(new PrintWriter(trace));
      return "\n" + trace;
    }
  }

  static String string(byte[] bytes) throws IOException { return new String(bytes, "UTF-8"); }

  /** Class loaders for the jars that were added to the application, by their paths. */
  static class Jars {
    private static final Map LOADERS = new HashMap();

    static synchronized ClassLoader loader(String paths) throws IOException {
      if (paths.isEmpty()) return Evaluator.class.getClassLoader();
      ClassLoader made = (ClassLoader) LOADERS.get(paths);
      if (made == null) {
        String[] names = paths.split("\n");
        URL[] urls = new URL[names.length];
        for (int i = 0; i < names.length; i++) urls[i] = new File(names[i]).toURI().toURL();
        made = new URLClassLoader(urls, Evaluator.class.getClassLoader());
        LOADERS.put(paths, made);
      }
      return made;
    }
  }
}
