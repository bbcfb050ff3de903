import java.io.*;
import java.util.*;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.expressions.BindReferences;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Nondeterministic;
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
  /** For each expression the JSON of its type; a text that begins with "!" if Spark refuses it. */
  public List types(Dataset frame, List texts) {
    List types = new ArrayList();
    for (int i = 0; i < texts.size(); i++) {
      try {
        Dataset selected = frame.selectExpr(new String[] {(String) texts.get(i)});
        Expression only = (Expression) selected.queryExecution().analyzed().expressions().apply(0);
        String mark = only.deterministic() ? "" : "?";
        types.add(mark + selected.schema().apply(0).dataType().json());
      } catch (Throwable refused) { types.add("!" + condition(refused)); }
    }
    return types;
  }

  /** Where literals and constructors are in a statement: start, end and type (of a literal), three texts for each. */
  public List literals(ParserInterface parser, String sql) throws Exception {
    List places = new ArrayList();
    inPlan(parser.parsePlan(sql), places);
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

  /** The rows of a frame as an Arrow stream with a schema of the same layout; a text if it fails. */
  public Object rows(Dataset frame, String schema) {
    try {
      final QueryExecution execution = frame.queryExecution();
      InternalRow[] rows = (InternalRow[]) SQLExecution.withNewExecutionId(
          execution, scala.Option.apply(null), new Collect(execution));
      ArrowWriter writer = ArrowWriter.create((StructType) DataType.fromJson(schema), "UTC", true, false);
      for (int i = 0; i < rows.length; i++) writer.write(rows[i]);
      writer.finish();
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      ArrowStreamWriter stream = new ArrowStreamWriter(writer.root(), null, bytes);
      stream.start(); stream.writeBatch(); stream.end();
      writer.root().close();
      return bytes.toByteArray();
    } catch (Throwable failed) { return condition(failed); }
  }

  /** For each column of a frame why it fails, "" if it does not; null if that cannot be said. */
  public List failures(Dataset frame) {
    List found = new ArrayList();
    Project project;
    Object[] rows;
    try {
      LogicalPlan plan = frame.queryExecution().optimizedPlan();
      if (!(plan instanceof Project)) return null;
      project = (Project) plan;
      Dataset below = Dataset.ofRows(frame.sparkSession(), project.child());
      rows = (Object[]) SQLExecution.withNewExecutionId(
          below.queryExecution(), scala.Option.apply(null), new Collect(below.queryExecution()));
    } catch (Throwable failed) { return null; }
    for (int i = 0; i < project.projectList().size(); i++) {
      try {
        Expression bound = (Expression) BindReferences.bindReference(
            (Expression) project.projectList().apply(i),
            package$.MODULE$.AttributeSeq(project.child().output()), false);
        bound.foreach(new Begin());
        for (int row = 0; row < rows.length; row++) bound.eval((InternalRow) rows[row]);
        found.add("");
      } catch (Throwable failed) { found.add(condition(failed)); }
    }
    return found;
  }

  public static class Begin extends scala.runtime.AbstractFunction1 {
    public Object apply(Object node) {
      if (node instanceof Nondeterministic) ((Nondeterministic) node).initialize(0);
      return scala.runtime.BoxedUnit.UNIT;
    }
  }

  /** The condition of an error, and in the lines below it its message. */
  static String condition(Throwable error) {
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
