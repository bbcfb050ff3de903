import java.io.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.*;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.*;

/**
 * A prepared step of a plan: rows in, rows out, both as Arrow streams.
 *
 * The fields of a request to prepare are: kind, settings, jars, the task's number, how many rows of
 * the task another evaluator had, schema of the result as JSON, and what the kind needs. A stream that begins with a batch instead of a schema continues the stream of
 * the request before, and so does its answer: most batches are small, and their schema is not.
 */
abstract class Step {
  Object settings; ClassLoader loader;
  private final StructType schema; private ArrowWriter writer; private ArrowStreamWriter answers;
  private final Bytes out = new Bytes(); private final Bytes in = new Bytes(); private boolean continued;
  private ArrowStreamReader reader; private ColumnarBatch rows; private UnsafeProjection copier;

  static Step make(String kind, byte[][] fields) throws Exception {
    StructType schema = (StructType) DataType.fromJson(Evaluator.string(fields[FIRST - 1]));
    if (kind.equals("project")) return new Projection(schema, expressions(fields), partition(fields));
    if (kind.startsWith("generate")) return new Generate(schema, fields, kind.endsWith("outer"));
    if (kind.equals("aggregate")) return new Aggregate(schema, fields[FIRST]);
    if (kind.equals("json")) return new JsonPayloads(schema);
    if (kind.equals("file")) return new FileRows(schema, fields);
    throw new IllegalArgumentException("no step of the kind " + kind);
  }

  Step(StructType schema) { this.schema = schema; }

  /** The answer to a request; its first field is an Arrow stream. */
  abstract byte[] run(byte[][] fields) throws Exception;

  /** Takes a row of the input, with its number. */
  abstract void take(int number, InternalRow row) throws Exception;

  /** Passes the rows of an Arrow stream to `take`. */
  void readRows(byte[] stream) throws Exception {
    continued = reader != null && !hasSchema(stream);
    in.refill(stream);
    if (!continued) {
      if (reader != null) reader.close();
      reader = new ArrowStreamReader(in, ArrowUtils.rootAllocator());
      rows = null;
    }
    VectorSchemaRoot root = reader.getVectorSchemaRoot();
    if (rows == null) open(root);
    int number = 0;
    try {
      while (reader.loadNextBatch()) {
        rows.setNumRows(root.getRowCount());
        Iterator every = rows.rowIterator();
        while (every.hasNext()) {
          InternalRow row = (InternalRow) every.next();
          take(number++, copier == null ? row : (InternalRow) copier.apply(row));
        }
      }
    } finally { root.clear(); }
  }

  private static boolean hasSchema(byte[] stream) {
    ByteBuffer message = ByteBuffer.wrap(stream);
    message.position(message.getInt(0) == -1 ? 8 : 4);
    return Message.getRootAsMessage(message).headerType() == MessageHeader.Schema;
  }

  /** Interpreted expressions read null elements as values, which Arrow's vectors refuse: copy nested values. */
  private void open(VectorSchemaRoot root) {
    ColumnVector[] columns = new ColumnVector[root.getFieldVectors().size()];
    DataType[] types = new DataType[columns.length];
    boolean nested = false;
    for (int i = 0; i < columns.length; i++) {
      columns[i] = new ArrowColumnVector((ValueVector) root.getFieldVectors().get(i));
      types[i] = columns[i].dataType();
      nested |= types[i] instanceof ArrayType || types[i] instanceof MapType || types[i] instanceof StructType;
    }
    rows = new ColumnarBatch(columns);
    copier = nested ? UnsafeProjection.create(types) : null;
  }

  ArrowWriter writer() {
    if (writer == null) writer = ArrowWriter.create(schema, "UTC", true, false);
    else writer.reset();
    return writer;
  }

  /** The rows that were written, as the answer to what `readRows` has read. */
  byte[] stream(ArrowWriter rows) throws IOException {
    rows.finish();
    boolean own = rows == writer;
    ArrowStreamWriter stream = own ? answers : null;
    out.size = 0;
    if (stream == null) {
      stream = new ArrowStreamWriter(rows.root(), null, out);
      stream.start();
      if (own) answers = stream;
      if (own && continued) out.size = 0;
    } else if (!continued) {
      answers = null;
      return stream(rows);
    }
    stream.writeBatch();
    byte[] bytes = Arrays.copyOf(out.bytes, out.size);
    // What one large batch has needed is not kept for small ones.
    if (own && bytes.length > KEPT_BYTES) release();
    return bytes;
  }

  private void release() {
    if (writer != null) writer.root().close();
    writer = null; answers = null; out.bytes = new byte[0];
  }

  void close() throws IOException {
    release();
    if (reader != null) reader.close();
  }

  static final int KEPT_BYTES = 1 << 16;

  /** Bytes that Arrow reads, or has written. */
  static class Bytes implements ReadableByteChannel, WritableByteChannel {
    byte[] bytes = new byte[0]; int size; private int at;

    void refill(byte[] all) { bytes = all; size = all.length; at = 0; }

    public int read(ByteBuffer into) {
      if (at == size) return -1;
      int count = Math.min(into.remaining(), size - at);
      into.put(bytes, at, count);
      at += count;
      return count;
    }

    public int write(ByteBuffer from) {
      int count = from.remaining();
      if (size + count > bytes.length) bytes = Arrays.copyOf(bytes, Math.max(size + count, 2 * bytes.length));
      from.get(bytes, size, count);
      size += count;
      return count;
    }

    public boolean isOpen() { return true; }

    public void close() { }
  }

  /** The first field that the kind of a step needs. */
  static final int FIRST = 6;

  /** The number of the client's task, which is what Spark calls its partition. */
  static int partition(byte[][] fields) throws IOException { return Integer.parseInt(Evaluator.string(fields[3])); }

  /** Pairs of fields: a serialised expression, and the columns that its references stand for. */
  static List expressions(byte[][] fields) throws Exception {
    List made = new ArrayList();
    long before = Long.parseLong(Evaluator.string(fields[4]));
    for (int i = FIRST; i < fields.length; i += 2) {
      String[] texts = Evaluator.string(fields[i + 1]).split(",");
      int[] columns = new int[texts.length];
      for (int j = 0; j < columns.length; j++) columns[j] = texts[j].isEmpty() ? 0 : Integer.parseInt(texts[j]);
      made.add(((Expression) Loading.load(fields[i])).transformUp(new Rebind(columns, before)));
    }
    return made;
  }

  /**
   * Replaces the n-th reference of an expression by a column of the batch, and seeds by new ones.
   *
   * Spark, too, draws a new seed for every batch of a stream, whatever the seed in the query. Numbers of
   * rows go on where another evaluator has ended.
   */
  static class Rebind extends scala.runtime.AbstractPartialFunction {
    private final int[] columns; private final long before;

    Rebind(int[] columns, long before) { this.columns = columns; this.before = before; }

    public boolean isDefinedAt(Object node) {
      return node instanceof BoundReference || node instanceof ExpressionWithRandomSeed || node instanceof MonotonicallyIncreasingID;
    }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      if (node instanceof ExpressionWithRandomSeed)
        return ((ExpressionWithRandomSeed) node).withNewSeed(ThreadLocalRandom.current().nextLong());
      if (node instanceof MonotonicallyIncreasingID)
        return new Add((Expression) node, new Literal(Long.valueOf(before), DataTypes.LongType));
      BoundReference old = (BoundReference) node;
      return new BoundReference(columns[old.ordinal()], old.dataType(), true);
    }
  }

  /** Finds classes where the thread does: also in jars that were added to the application. */
  static class Loading extends ObjectInputStream {
    private String missing;

    Loading(byte[] bytes) throws IOException { super(new ByteArrayInputStream(bytes)); }

    static Object load(byte[] bytes) throws Exception { return new Loading(bytes).load(); }

    /** The object, or the first class that is missing: without that of a lambda, Java's own error misleads. */
    Object load() throws Exception {
      try { return readObject(); }
      catch (Exception error) {
        if (missing == null) throw error;
        throw new ClassNotFoundException(missing + " is not on the class path of the executor. Add its jar to the application (spark.jars)");
      }
    }

    public Class resolveClass(ObjectStreamClass wanted) throws IOException, ClassNotFoundException {
      try { return Class.forName(wanted.getName(), false, Thread.currentThread().getContextClassLoader()); }
      catch (ClassNotFoundException unknown) {
        try { return super.resolveClass(wanted); } // such as int
        catch (ClassNotFoundException error) {
          if (missing == null) missing = wanted.getName();
          throw error;
        }
      }
    }
  }

  /** Expressions over each row: `select`, `where`. */
  static class Projection extends Step {
    private final UnsafeProjection projection; private ArrowWriter out;

    Projection(StructType schema, List expressions, int partition) {
      super(schema);
      projection = UnsafeProjection.create(Evaluator.seq(expressions));
      projection.initialize(partition);
    }

    byte[] run(byte[][] fields) throws Exception {
      out = writer();
      readRows(fields[0]);
      return stream(out);
    }

    void take(int number, InternalRow row) { out.write((InternalRow) projection.apply(row)); }
  }
}
