import java.io.*;
import java.util.*;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;

/**
 * Runs a small projection, so that the classes that every step needs are there before its first batch.
 *
 * With the names of functions it runs these too: for the archive of classes, which is made once.
 */
class WarmUp extends Thread {
  private static final String[] COMMON = {
    "upper initcap trim length md5 to_json schema_of_json", // of a text
    "abs sqrt hex bin char string double decimal", // of a number
    "year date_trunc hour last_day unix_timestamp date string" // of a time
  };
  private static final StructType ROW = new StructType()
    .add("0", DataTypes.StringType).add("1", DataTypes.LongType).add("2", DataTypes.TimestampType);

  WarmUp() { super("warm-up"); }

  public void run() {
    try { project(new Upper(column(0))); } catch (Throwable unable) { }
  }

  /** Runs functions of all kinds. */
  static void train() {
    new WarmUp().run();
    for (int i = 0; i < COMMON.length; i++) {
      String[] names = COMMON[i].split(" ");
      for (int j = 0; j < names.length; j++) {
        try { project(call(names[j], column(i))); } catch (Throwable unable) { }
      }
    }
    String json = "get_json_object", text = "regexp_replace";
    try { project(call(json, column(0), new Literal(utf8("$.a"), DataTypes.StringType))); } catch (Throwable unable) { }
    try { project(call(text, column(0), column(0), column(0))); } catch (Throwable unable) { }
    try { project(call("date_format", column(2), new Literal(utf8("yyyy"), DataTypes.StringType))); } catch (Throwable unable) { }
    try { project(call("array", column(0), column(0))); } catch (Throwable unable) { }
  }

  private static Expression call(String name, Expression one) { return call(name, new Expression[] { one }); }

  private static Expression call(String name, Expression one, Expression two) { return call(name, new Expression[] { one, two }); }

  private static Expression call(String name, Expression one, Expression two, Expression three) {
    return call(name, new Expression[] { one, two, three });
  }

  private static Expression call(String name, Expression[] arguments) {
    Expression made = (Expression) FunctionRegistry$.MODULE$.builtin().lookupFunction(new FunctionIdentifier(name), Evaluator.seq(Arrays.asList(arguments)));
    return made instanceof RuntimeReplaceable ? ((RuntimeReplaceable) made).replacement() : made;
  }

  private static Expression column(int number) { return new BoundReference(number, ROW.fields()[number].dataType(), true); }

  private static Object utf8(String text) { return org.apache.spark.unsafe.types.UTF8String.fromString(text); }

  private static void project(Expression expression) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    ObjectOutputStream out = new ObjectOutputStream(bytes);
    out.writeObject(expression);
    out.flush();
    String schema = new StructType().add("0", expression.dataType()).json();
    byte[][] fields = { "project".getBytes(), new byte[0], new byte[0], "0".getBytes(), schema.getBytes("UTF-8"), bytes.toByteArray(), "0,1,2".getBytes() };
    Step step = Step.make("project", fields);
    try { step.run(new byte[][] { row() }); } finally { step.close(); }
  }

  private static byte[] row() throws Exception {
    ArrowWriter rows = ArrowWriter.create(ROW, "UTC", true, false);
    rows.write(InternalRow.fromSeq(Evaluator.seq(Arrays.asList(new Object[] { utf8("a"), Long.valueOf(1), Long.valueOf(1) }))));
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    rows.finish();
    org.apache.arrow.vector.ipc.ArrowStreamWriter stream = new org.apache.arrow.vector.ipc.ArrowStreamWriter(rows.root(), null, bytes);
    stream.start(); stream.writeBatch(); stream.end();
    rows.root().close();
    return bytes.toByteArray();
  }
}
