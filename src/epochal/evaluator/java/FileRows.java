import java.io.*;
import java.time.ZoneId;
import java.util.*;
import java.util.zip.InflaterInputStream;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.datasources.*;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.*;

/**
 * Rows of files, read by the reader that Spark made on the driver: a FileScanRDD without files.
 *
 * The fields to prepare it, after the schema of the rows, are: the reader, the Hadoop configuration
 * (deflated), the number of columns that are in the file, and the time zone of partition values.
 * The columns after those in the file are partition columns.
 *
 * A request names a file (path, size, time of change), the first row that is wanted, and the texts
 * of its partition values. The answer is an Arrow stream of the next rows, and a byte: 0 if they are
 * the last. A file stays open between requests. As a request says where to continue, it can be sent
 * to another evaluator too, which then opens the file and skips rows.
 */
class FileRows extends Step {
  static final int ROWS = 16384, BYTES = 1 << 21;

  private final FileScanRDD scan; private final StructType schema; private final int inFile;
  private final ZoneId zone; private final UnsafeProjection unsafe; private final Map readings = new HashMap();

  FileRows(StructType schema, byte[][] fields) throws Exception {
    super(schema);
    this.schema = schema;
    InputStream packed = new InflaterInputStream(new ByteArrayInputStream(fields[FIRST + 1]));
    scan = (FileScanRDD) new Scan(fields[FIRST], Loading.load(packed.readAllBytes())).load();
    inFile = Integer.parseInt(Evaluator.string(fields[FIRST + 2]));
    zone = ZoneId.of(Evaluator.string(fields[FIRST + 3]), ZoneId.SHORT_IDS);
    DataType[] types = new DataType[inFile];
    for (int i = 0; i < inFile; i++) types[i] = schema.fields()[i].dataType();
    unsafe = UnsafeProjection.create(types);
  }

  byte[] run(byte[][] fields) throws Exception {
    String path = Evaluator.string(fields[0]);
    long from = number(fields[3]);
    Reading reading = (Reading) readings.remove(path);
    if (reading != null && reading.row != from) { reading.close(); reading = null; }
    boolean more = false;
    try {
      if (reading == null) reading = new Reading(fields);
      TaskContext$.MODULE$.setTaskContext(reading.context);
      reading.skipTo(from);
      byte[] rows = stream(reading.write(writer()));
      more = reading.rows.hasNext();
      ByteArrayOutputStream answer = new ByteArrayOutputStream(rows.length + 1);
      answer.write(rows);
      answer.write(more ? 1 : 0);
      return answer.toByteArray();
    } finally {
      if (more) readings.put(path, reading); else if (reading != null) reading.close();
      TaskContext$.MODULE$.unset();
    }
  }

  void take(int number, InternalRow row) { throw new IllegalStateException(); }

  void close() throws IOException {
    for (Object reading : readings.values()) ((Reading) reading).close();
    super.close();
  }

  private static long number(byte[] text) throws IOException { return Long.parseLong(Evaluator.string(text)); }

  /** An open file. */
  class Reading {
    final TaskContextImpl context = TaskContext$.MODULE$.empty();
    final scala.collection.Iterator rows; private final InternalRow partition; long row = 0;

    Reading(byte[][] fields) throws Exception {
      // In a task Spark takes the session's settings from the properties of the task.
      context.getLocalProperties().putAll(
        scala.jdk.javaapi.CollectionConverters.asJava(((SQLConf) settings).getAllConfs()));
      Object[] values = new Object[schema.length() - inFile];
      for (int i = 0; i < values.length; i++)
        values[i] = PartitioningUtils$.MODULE$.castPartValueToDesiredType(
          schema.fields()[inFile + i].dataType(), Evaluator.string(fields[4 + i]), zone);
      partition = values.length == 0 ? null : new GenericInternalRow(values);
      long size = number(fields[1]);
      PartitionedFile file = new PartitionedFile(new GenericInternalRow(new Object[0]), SparkPath.fromUrlString(Evaluator.string(fields[0])),
        0L, size, new String[0], number(fields[2]), size, scala.collection.immutable.Map$.MODULE$.empty());
      rows = scan.compute(new FilePartition(0, new PartitionedFile[] { file }), context);
    }

    void skipTo(long wanted) { while (row < wanted && rows.hasNext()) { rows.next(); row++; } }

    ArrowWriter write(ArrowWriter out) {
      JoinedRow joined = new JoinedRow();
      long bytes = 0;
      for (int count = 0; count < ROWS && bytes < BYTES && rows.hasNext(); count++) {
        InternalRow next = (InternalRow) rows.next();
        UnsafeRow data = next instanceof UnsafeRow ? (UnsafeRow) next : (UnsafeRow) unsafe.apply(next);
        bytes += data.getSizeInBytes();
        out.write(partition == null ? data : joined.apply(data, partition));
        row++;
      }
      return out;
    }

    /** Readers close their files when their task ends. */
    void close() { context.markTaskCompleted(scala.Option.empty()); }
  }

  /** Reads a serialised reader; what the driver broadcast is its Hadoop configuration. */
  static class Scan extends Loading {
    private final Object hadoop;

    Scan(byte[] bytes, Object hadoop) throws IOException {
      super(bytes);
      this.hadoop = hadoop;
      enableResolveObject(true);
    }

    protected Object resolveObject(Object read) { return read instanceof Broadcast ? new Here(hadoop) : read; }
  }

  /** A broadcast value that is here. */
  static class Here extends Broadcast {
    private final Object value;

    Here(Object value) { super(0L, scala.reflect.ClassTag$.MODULE$.apply(Object.class)); this.value = value; }

    public Object getValue() { return value; }

    public void doUnpersist(boolean blocking) { }

    public void doDestroy(boolean blocking) { }
  }
}
