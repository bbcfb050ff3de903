import java.io.*;
import java.util.*;
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
 * The fields of a request to prepare are: kind, settings, jars, schema of the result as JSON, and
 * what the kind needs.
 */
abstract class Step {
  Object settings; ClassLoader loader;
  private ArrowWriter writer; private StructType schema; private UnsafeProjection copier;

  static Step make(String kind, byte[][] fields) throws Exception {
    StructType schema = (StructType) DataType.fromJson(Evaluator.string(fields[3]));
    if (kind.equals("project")) return new Projection(schema, expressions(fields, 4));
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
    ArrowStreamReader reader = new ArrowStreamReader(new ByteArrayInputStream(stream), ArrowUtils.rootAllocator());
    try {
      int number = 0;
      while (reader.loadNextBatch()) {
        VectorSchemaRoot root = reader.getVectorSchemaRoot();
        ColumnVector[] columns = new ColumnVector[root.getFieldVectors().size()];
        for (int i = 0; i < columns.length; i++)
          columns[i] = new ArrowColumnVector((ValueVector) root.getFieldVectors().get(i));
        UnsafeProjection copy = copier(columns);
        Iterator rows = new ColumnarBatch(columns, root.getRowCount()).rowIterator();
        while (rows.hasNext()) {
          InternalRow row = (InternalRow) rows.next();
          take(number++, copy == null ? row : (InternalRow) copy.apply(row));
        }
      }
    } finally { reader.close(); }
  }

  /** Interpreted expressions read null elements as values, which Arrow's vectors refuse: copy nested values. */
  private UnsafeProjection copier(ColumnVector[] columns) {
    if (copier != null) return copier;
    DataType[] types = new DataType[columns.length];
    boolean nested = false;
    for (int i = 0; i < types.length; i++) {
      types[i] = columns[i].dataType();
      nested |= types[i] instanceof ArrayType || types[i] instanceof MapType || types[i] instanceof StructType;
    }
    if (nested) copier = UnsafeProjection.create(types);
    return copier;
  }

  ArrowWriter writer() {
    if (writer == null) writer = ArrowWriter.create(schema, "UTC", true, false);
    else writer.reset();
    return writer;
  }

  static byte[] stream(ArrowWriter rows) throws IOException {
    rows.finish();
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(1 << 14);
    ArrowStreamWriter stream = new ArrowStreamWriter(rows.root(), null, bytes);
    stream.start(); stream.writeBatch(); stream.end();
    return bytes.toByteArray();
  }

  void close() { if (writer != null) writer.root().close(); }

  /** Pairs of fields: a serialised expression, and the columns that its references stand for. */
  static List expressions(byte[][] fields, int from) throws Exception {
    List made = new ArrayList();
    for (int i = from; i < fields.length; i += 2) {
      String[] texts = Evaluator.string(fields[i + 1]).split(",");
      int[] columns = new int[texts.length];
      for (int j = 0; j < columns.length; j++) columns[j] = texts[j].isEmpty() ? 0 : Integer.parseInt(texts[j]);
      made.add(((Expression) new Loading(fields[i]).readObject()).transform(new Rebind(columns)));
    }
    return made;
  }

  /** Replaces the n-th reference of an expression by a column of the batch. */
  static class Rebind extends scala.runtime.AbstractPartialFunction {
    private final int[] columns;

    Rebind(int[] columns) { this.columns = columns; }

    public boolean isDefinedAt(Object node) { return node instanceof BoundReference; }

    public Object applyOrElse(Object node, scala.Function1 otherwise) {
      if (!isDefinedAt(node)) return otherwise.apply(node);
      BoundReference old = (BoundReference) node;
      return new BoundReference(columns[old.ordinal()], old.dataType(), true);
    }
  }

  /** Finds classes where the thread does: also in jars that were added to the application. */
  static class Loading extends ObjectInputStream {
    Loading(byte[] bytes) throws IOException { super(new ByteArrayInputStream(bytes)); }

    public Class resolveClass(ObjectStreamClass wanted) throws IOException, ClassNotFoundException {
      try { return Class.forName(wanted.getName(), false, Thread.currentThread().getContextClassLoader()); }
      catch (ClassNotFoundException missing) { return super.resolveClass(wanted); }
    }
  }

  /** Expressions over each row: `select`, `where`. */
  static class Projection extends Step {
    private final UnsafeProjection projection; private ArrowWriter out;

    Projection(StructType schema, List expressions) {
      super(schema);
      projection = UnsafeProjection.create(Evaluator.seq(expressions));
      projection.initialize(0);
    }

    byte[] run(byte[][] fields) throws Exception {
      out = writer();
      readRows(fields[0]);
      return stream(out);
    }

    void take(int number, InternalRow row) { out.write((InternalRow) projection.apply(row)); }
  }
}
