import java.util.*;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;

/**
 * Rows that a generator makes of rows: `json_tuple`, `variant_explode`, functions of users.
 *
 * Rows have a number in their last column. It is the first column of the rows that are made of them.
 */
class Generate extends Step {
  private final byte[][] fields; private final boolean outer, stateless; private final InternalRow nulls;
  private Generator generator;
  private ArrowWriter out; private int last;

  Generate(StructType schema, byte[][] fields, boolean outer) throws Exception {
    super(schema);
    this.fields = fields;
    this.outer = outer;
    nulls = new GenericInternalRow(schema.size() - 1);
    load();
    stateless = generator.getClass().getName().startsWith("org.apache.spark.sql.catalyst.expressions.")
        && !(generator instanceof UserDefinedGenerator);
  }

  /** A partition of Spark's has its own copy of the generator. */
  private void load() throws Exception {
    generator = (Generator) expressions(fields).get(0);
    final int partition = partition(fields);
    ((Expression) generator).foreach(new scala.runtime.AbstractFunction1() {
      public Object apply(Object node) {
        if (node instanceof Nondeterministic) ((Nondeterministic) node).initialize(partition);
        return null;
      }
    });
  }

  byte[] run(byte[][] fields) throws Exception {
    if (!stateless) load();
    out = writer();
    last = 0;
    readRows(fields[0]);
    // As in Spark, what comes at the end belongs to the last row.
    write(generator.terminate().iterator());
    return stream(out);
  }

  void take(int number, InternalRow row) {
    last = row.getInt(row.numFields() - 1);
    scala.collection.Iterator made = generator.eval(row).iterator();
    if (outer && !made.hasNext()) out.write(joined(nulls));
    write(made);
  }

  private void write(scala.collection.Iterator rows) {
    while (rows.hasNext()) out.write(joined((InternalRow) rows.next()));
  }

  private InternalRow joined(InternalRow row) {
    return new JoinedRow(new GenericInternalRow(new Object[] { Integer.valueOf(last) }), row);
  }
}
