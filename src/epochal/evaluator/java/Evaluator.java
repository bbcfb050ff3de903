import java.io.*;
import java.net.*;
import java.nio.channels.*;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
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
 * bytes. The answer is: int status, int length, bytes. To prepare, the step is the client's process.
 */
public class Evaluator {
  static final int PREPARE = 1, RUN = 2, PING = 3;
  /** Java keeps as much direct memory as the largest read or write of a thread. */
  static final int PIECE = 1 << 17;
  /** How many characters of an error are shown: what fits on a screen. */
  static final int SHOWN = 1500;
  static final int OK = 0, FAILED = 1, OUT_OF_MEMORY = 2;

  static final ThreadLocal SETTINGS = new ThreadLocal();
  static final Set CLIENTS = Collections.newSetFromMap(new ConcurrentHashMap());

  /**
   * Arguments: the path of the socket, the process to live with, idle seconds before the end. Or
   * "compile", a directory for classes, and source files; or "train", to load the usual classes.
   */
  public static void main(String[] args) throws Exception {
    if (args[0].equals("compile")) { compile(args); return; }
    SQLConf$.MODULE$.setSQLConfGetter(new scala.runtime.AbstractFunction0() {
      public Object apply() {
        if (SETTINGS.get() == null) SETTINGS.set(new SQLConf());
        return SETTINGS.get();
      }
    });
    if (args[0].equals("train")) { WarmUp.train(); System.exit(0); }
    ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    Path unready = Paths.get(args[0] + ".new", new String[0]);
    server.bind(UnixDomainSocketAddress.of(unready));
    Watch watch = new Watch(Long.parseLong(args[1]), 1000000000L * Long.parseLong(args[2]), unready.getParent());
    watch.setDaemon(true);
    watch.start();
    // Nobody can connect to a socket that does not accept yet.
    Files.move(unready, Paths.get(args[0], new String[0]), new CopyOption[] { StandardCopyOption.REPLACE_EXISTING });
    WarmUp warmUp = new WarmUp();
    warmUp.setDaemon(true);
    warmUp.start();
    while (true) {
      SocketChannel channel = server.accept();
      Client client = new Client(channel);
      CLIENTS.add(client);
      client.setDaemon(true);
      client.start();
    }
  }

  private static void compile(String[] args) throws Exception {
    org.codehaus.janino.Compiler compiler = new org.codehaus.janino.Compiler();
    compiler.setDestinationDirectory(new File(args[1]), false);
    File[] files = new File[args.length - 2];
    for (int i = 0; i < files.length; i++) files[i] = new File(args[i + 2]);
    compiler.compile(files);
  }

  static scala.collection.immutable.Seq seq(List list) {
    return scala.jdk.javaapi.CollectionConverters.asScala(list).toSeq();
  }

  static List list(scala.collection.Iterable items) {
    return new ArrayList(scala.jdk.javaapi.CollectionConverters.asJavaCollection(items));
  }

  /**
   * Ends this process when its executor has ended, when it has had no client for long, or when it works
   * for a process that has ended. Other clients of it then start another one.
   */
  static class Watch extends Thread {
    private final ProcessHandle executor; private final long mostIdle; private final Path folder;
    private long used = System.nanoTime();

    Watch(long executor, long mostIdle, Path folder) {
      super("watch");
      this.executor = handle(executor); this.mostIdle = mostIdle; this.folder = folder;
    }

    /** Janino calls no static methods of interfaces. */
    static ProcessHandle handle(long pid) {
      try {
        Object found = ProcessHandle.class.getMethod("of", new Class[] { long.class }).invoke(null, new Object[] { Long.valueOf(pid) });
        return (ProcessHandle) ((Optional) found).orElse(null);
      } catch (ReflectiveOperationException error) { throw new IllegalStateException(error); }
    }

    /** Whether a process runs. One that has ended may still be listed, until its parent looks. */
    static boolean isAlive(ProcessHandle process) {
      if (process == null || !process.isAlive()) return false;
      try {
        String status = Files.readString(Paths.get("/proc/" + process.pid() + "/stat", new String[0]));
        return "ZX".indexOf(status.charAt(status.lastIndexOf(')') + 2)) < 0;
      } catch (IOException unknown) { return true; }
    }

    private static void delete(File file) {
      File[] inside = file.listFiles();
      for (int i = 0; inside != null && i < inside.length; i++) delete(inside[i]);
      file.delete();
    }

    public void run() {
      while (isAlive(executor)) {
        if (!CLIENTS.isEmpty()) used = System.nanoTime();
        if (System.nanoTime() - used > mostIdle) Runtime.getRuntime().halt(0);
        Iterator clients = CLIENTS.iterator();
        while (clients.hasNext()) if (((Client) clients.next()).isAbandoned()) Runtime.getRuntime().halt(4);
        try { Thread.sleep(250); } catch (InterruptedException again) { }
      }
      // Nobody comes back for the directory.
      delete(folder.toFile());
      Runtime.getRuntime().halt(0);
    }
  }

  /** One connection of a task. */
  static class Client extends Thread {
    private final SocketChannel channel; private final List steps = new ArrayList();
    private final Map settings = new HashMap(); private volatile long since; private volatile long pid;

    Client(SocketChannel channel) { super("client"); this.channel = channel; }

    public void run() {
      try {
        DataInputStream in = new DataInputStream(new BufferedInputStream(Channels.newInputStream(channel), 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Channels.newOutputStream(channel), 1 << 16));
        while (true) {
          int operation;
          try { operation = in.readInt(); } catch (EOFException end) { return; }
          int step = in.readInt(), status = OK; byte[] answer;
          try {
            byte[][] fields = fields(in);
            since = System.nanoTime();
            answer = answer(operation, step, fields);
          } catch (Gone end) {
            return;
          } catch (Throwable error) {
            Throwable memory = shortage(error);
            status = memory == null ? FAILED : OUT_OF_MEMORY;
            answer = (memory == null ? text(error) : memory.toString()).getBytes("UTF-8");
          }
          since = 0;
          out.writeInt(status); out.writeInt(answer.length);
          for (int at = 0; at < answer.length; at += PIECE) out.write(answer, at, Math.min(PIECE, answer.length - at));
          out.flush();
          // What other threads hold may be broken. The tasks start another evaluator.
          if (status == OUT_OF_MEMORY) Runtime.getRuntime().halt(3);
        }
      } catch (IOException gone) {
      } finally {
        freeSteps();
        CLIENTS.remove(this);
        try { channel.close(); } catch (IOException closed) { }
      }
    }

    private static byte[][] fields(DataInputStream in) throws Gone {
      try {
        byte[][] fields = new byte[in.readInt()][];
        for (int i = 0; i < fields.length; i++) {
          fields[i] = new byte[in.readInt()];
          for (int at = 0; at < fields[i].length; at += PIECE) in.readFully(fields[i], at, Math.min(PIECE, fields[i].length - at));
        }
        return fields;
      } catch (IOException end) { throw new Gone(); }
    }

    /** The client has closed the connection. */
    static class Gone extends Exception { }

    private byte[] answer(int operation, int number, byte[][] fields) throws Exception {
      if (operation == PING) return new byte[0];
      if (operation == PREPARE) {
        pid = number;
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

    private void freeSteps() {
      for (int i = 0; i < steps.size(); i++) {
        try { ((Step) steps.get(i)).close(); } catch (Throwable broken) { }
      }
    }

    /** The lack of memory, of any kind, that caused an error; null if something else did. */
    private static Throwable shortage(Throwable error) {
      for (Throwable cause = error; cause != null; cause = cause.getCause())
        if (cause instanceof OutOfMemoryError || cause instanceof org.apache.arrow.memory.OutOfMemoryException) return cause;
      return null;
    }

    /** Whether it works for a process that has ended: for a loop without end, for example. */
    boolean isAbandoned() {
      long began = since;
      return began != 0 && System.nanoTime() - began > 10000000000L && pid != 0 && !Watch.isAlive(Watch.handle(pid));
    }

    /** Spark's message; of other errors the class and the message. The log has what is cut off, and causes. */
    private static String text(Throwable error) {
      boolean worded = error instanceof org.apache.spark.SparkThrowable;
      String text = worded ? error.getMessage() : error.toString();
      if (!worded || error.getCause() != null || text.length() > SHOWN) error.printStackTrace();
      return text.length() <= SHOWN ? text : text.substring(0, SHOWN) + "... (the rest is in the log of the executor)";
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
