import com.fasterxml.jackson.core.JsonFactory;
import java.util.ArrayList;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.json.*;
import org.apache.spark.sql.catalyst.util.FailFastMode$;
import org.apache.spark.sql.catalyst.util.FailureSafeParser;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * JSON documents by a schema, as `from_json` parses them, and the reason of each that is malformed.
 *
 * The rows have one binary column. The first column of the result is the struct, and the second the
 * reason. One of the two is null.
 */
class JsonPayloads extends Step {
  private final FailureSafeParser parser; private ArrowWriter out;

  JsonPayloads(StructType result) {
    super(result);
    StructType schema = (StructType) result.fields()[0].dataType();
    JSONOptions options = new JSONOptions(scala.collection.immutable.Map$.MODULE$.empty(), "UTC", "");
    // A payload is one row, so an array of objects is malformed.
    final JacksonParser raw = new JacksonParser(schema, options, false, Evaluator.seq(new ArrayList()));
    final scala.Function2 open = new scala.runtime.AbstractFunction2() {
      public Object apply(Object factory, Object text) {
        return CreateJacksonParser$.MODULE$.utf8String((JsonFactory) factory, (UTF8String) text);
      }
    };
    final scala.Function1 same = new scala.runtime.AbstractFunction1() {
      public Object apply(Object text) { return text; }
    };
    scala.Function1 parse = new scala.runtime.AbstractFunction1() {
      public Object apply(Object text) { return raw.parse(text, open, same); }
    };
    parser = new FailureSafeParser(parse, FailFastMode$.MODULE$, schema, "");
  }

  byte[] run(byte[][] fields) throws Exception {
    out = writer();
    readRows(fields[0]);
    return stream(out);
  }

  void take(int number, InternalRow row) throws Exception {
    Object value = null; String reason = null;
    try {
      scala.collection.Iterator rows = parser.parse(UTF8String.fromBytes(row.getBinary(0)));
      if (rows.hasNext()) value = rows.next(); else reason = "the payload is empty";
    } catch (Exception error) {
      if (!(error instanceof SparkThrowable)) throw error;
      Throwable cause = error.getCause();
      reason = (cause == null || cause.getMessage() == null ? error : cause).getMessage();
    }
    out.write(new GenericInternalRow(new Object[] { value, UTF8String.fromString(reason) }));
  }
}
