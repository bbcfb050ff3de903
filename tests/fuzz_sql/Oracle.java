import java.io.*;
import java.util.*;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;

/** Asks Spark many things in one call: Python's way to the JVM takes longer than most answers. */
public class Oracle {
  /** For each expression the JSON of its type, one text for all; a text that begins with "!" if Spark refuses it. */
  public String types(Dataset frame, String joined) {
    List texts = Arrays.asList(joined.split("\0", -1));
    List types = new ArrayList();
    for (int i = 0; i < texts.size(); i++) {
      try {
        Dataset selected = frame.selectExpr(new String[] {(String) texts.get(i)});
        Expression only = (Expression) selected.queryExecution().analyzed().expressions().apply(0);
        String mark = only.deterministic() ? "" : "?";
        types.add(mark + selected.schema().apply(0).dataType().json());
      } catch (Throwable refused) { types.add("!" + condition(refused)); }
    }
    return String.join("\0", types);
  }

  /**
   * Where literals and constructors are in a statement: start, end and type (of a literal), three texts for each. There
   * are none if the parser refuses it: to make an error of Python's takes PySpark fifty calls.
   */
  public List literals(ParserInterface parser, String sql) {
    List places = new ArrayList();
    try { inPlan(parser.parsePlan(sql), places); } catch (Throwable refused) { places.clear(); }
    return places;
  }

  private static void inPlan(LogicalPlan plan, List places) {
    for (int i = 0; i < plan.expressions().size(); i++) in((Expression) plan.expressions().apply(i), places);
    for (int i = 0; i < plan.children().size(); i++) inPlan((LogicalPlan) plan.children().apply(i), places);
  }

  private static void in(Expression node, List places) {
    if (node.origin().startIndex().isDefined() && (node instanceof Literal || isConstructor(node))) {
      places.add(node.origin().startIndex().get().toString());
      places.add(node.origin().stopIndex().get().toString());
      places.add(node instanceof Literal ? node.dataType().json() : "");
    }
    for (int i = 0; i < node.children().size(); i++) in((Expression) node.children().apply(i), places);
  }

  /** Whether a call makes an array, a map or a struct of its arguments. */
  private static boolean isConstructor(Expression node) {
    if (!(node instanceof UnresolvedFunction)) return false;
    String name = ((UnresolvedFunction) node).nameParts().mkString(".").toLowerCase();
    return name.equals("array") || name.equals("map") || name.equals("struct") || name.equals("named_struct");
  }

  /** The rows of a frame as an Arrow stream; a text if it fails. */
  public Object rows(Dataset frame) {
    try {
      InternalRow[] rows = (InternalRow[]) collected(frame);
      ArrowWriter writer = ArrowWriter.create((StructType) DataType.fromJson(plain(frame.schema().json())), "UTC", true, false);
      for (int i = 0; i < rows.length; i++) writer.write(rows[i]);
      return stream(writer);
    } catch (Throwable failed) { return condition(failed); }
  }

  /** The rows of a frame. Tasks know the session's settings; nothing is told to Spark's listeners, which would take long. */
  private static Object collected(Dataset frame) {
    return SQLExecution.withSQLConfPropagated(frame.sparkSession(), new Collect(frame.queryExecution()));
  }

  private static byte[] stream(ArrowWriter writer) throws Exception {
    writer.finish();
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    ArrowStreamWriter stream = new ArrowStreamWriter(writer.root(), null, bytes);
    stream.start(); stream.writeBatch(); stream.end();
    writer.root().close();
    return bytes.toByteArray();
  }

  /**
   * What Spark has for expressions over a frame: an Arrow stream with the columns of those that do not fail, and for
   * each expression why it fails, "" if it does not. They are optimised and evaluated together, in one job.
   */
  public List values(Dataset frame, String joined) throws Exception {
    List texts = Arrays.asList(joined.split("\0", -1));
    Object[] columns = new Object[texts.size()];
    String[] failures = new String[texts.size()];
    StructType types = new StructType();
    fill(frame, texts, 0, texts.size(), columns, failures);
    int rows = 0;
    List valid = new ArrayList();
    for (int i = 0; i < columns.length; i++)
      if (columns[i] != null) {
        StructField only = ((Column) columns[i]).type;
        types = types.add("r" + i, DataType.fromJson(plain(only.dataType().json())), true);
        rows = ((Column) columns[i]).values.length;
        valid.add(((Column) columns[i]).values);
      }
    List answer = new ArrayList();
    ArrowWriter writer = ArrowWriter.create(types, "UTC", true, false);
    for (int row = 0; row < rows; row++) {
      Object[] values = new Object[valid.size()];
      for (int i = 0; i < values.length; i++) values[i] = ((Object[]) valid.get(i))[row];
      writer.write(new GenericInternalRow(values));
    }
    answer.add(stream(writer));
    for (int i = 0; i < failures.length; i++) if (failures[i] == null) failures[i] = "";
    answer.add(String.join("\0", failures));
    return answer;
  }

  /** Months are plain numbers, because pyarrow has no type for them. */
  private static String plain(String type) {
    return type.replaceAll("\"interval (year|month|year to month)\"", "\"integer\"");
  }

  /** The same column; an error if Arrow cannot have its type or a value of it. */
  private static Column shown(Column column) {
    StructType types = new StructType().add("r", DataType.fromJson(plain(column.type.dataType().json())), true);
    ArrowWriter writer = ArrowWriter.create(types, "UTC", true, false);
    try {
      for (int row = 0; row < column.values.length; row++)
        writer.write(new GenericInternalRow(new Object[] {column.values[row]}));
      return column;
    } finally { writer.root().close(); }
  }

  public static class Column {
    final StructField type;
    final Object[] values;
    Column(StructField type, Object[] values) { this.type = type; this.values = values; }
  }

  private static void fill(Dataset frame, List texts, int from, int to, Object[] columns, String[] failures) {
    if (from == to) return;
    String[] selected = new String[to - from];
    for (int i = from; i < to; i++) selected[i - from] = texts.get(i) + " AS r" + i;
    try {
      Dataset made = frame.selectExpr(selected);
      LogicalPlan plan = made.queryExecution().optimizedPlan();
      if (!(plan instanceof Project) || ((Project) plan).projectList().size() != to - from)
        plan = new Project((scala.collection.immutable.Seq) plan.output(), plan);
      Project project = (Project) plan;
      Dataset below = Dataset.ofRows(frame.sparkSession(), project.child());
      Object[] rows = (Object[]) collected(below);
      for (int i = from; i < to; i++) {
        StructField type = made.schema().apply(i - from);
        try {
          Expression bound = (Expression) BindReferences.bindReference(
              (Expression) project.projectList().apply(i - from),
              package$.MODULE$.AttributeSeq(project.child().output()), false);
          UnsafeProjection projection = UnsafeProjection$.MODULE$.create(bound);
          projection.initialize(0);
          Object[] values = new Object[rows.length];
          for (int row = 0; row < rows.length; row++)
            values[row] = projection.apply((InternalRow) rows[row]).copy().get(0, type.dataType());
          columns[i] = shown(new Column(type, values));
        } catch (Throwable failed) { failures[i] = condition(failed); }
      }
    } catch (Throwable failed) {
      if (to - from == 1) failures[from] = condition(failed);
      else {
        int half = (from + to) / 2;
        fill(frame, texts, from, half, columns, failures);
        fill(frame, texts, half, to, columns, failures);
      }
    }
  }

  /** The condition of an error, and in the lines below it its message. */
  static String condition(Throwable error) { return said(error).replace('\0', ' '); }

  private static String said(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause())
      if (cause instanceof SparkThrowable && ((SparkThrowable) cause).getCondition() != null
          && !((SparkThrowable) cause).getCondition().startsWith("FAILED_"))
        return ((SparkThrowable) cause).getCondition() + "\n" + cause.getMessage();
    return error.getClass().getSimpleName() + "\n" + error.getMessage();
  }

  public static class Collect extends scala.runtime.AbstractFunction0 {
    private final QueryExecution execution;
    public Collect(QueryExecution execution) { this.execution = execution; }
    public Object apply() { return execution.executedPlan().executeCollect(); }
  }
}
