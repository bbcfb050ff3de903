import java.io.*;
import java.util.*;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.*;
import org.apache.spark.sql.catalyst.expressions.aggregate.*;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.*;

/**
 * The aggregates of one operator. The buffers of a group are one of Spark's rows, as in its state.
 *
 * A request with one field has the rows of groups, each as int length and bytes; the answer has
 * the results. Otherwise the first field has rows of the input as an Arrow stream, with the number
 * of a part in the last column. The rows of a part are added up. The second field says what is
 * merged into which group, in order: int group, int part, int length, bytes. If the length is not
 * negative, it is a row that exists already, and not a part. The answer has the rows of the groups.
 *
 * If there is a third field, the parts are those of a task before an exchange: Spark merges them
 * once more, after it. Approximate functions would have other buffers without that.
 */
class Aggregate extends Step {
  private final AggregateFunction[] updating, merging; private final BasePredicate[] filters;
  private final DataType[] types; private final scala.collection.immutable.Seq typeList; private final int inputs;
  private final MutableProjection initial, update, merge, evaluate;
  private final UnsafeProjection input, state, result; private final boolean declared;
  private final JoinedRow joined = new JoinedRow(); private final List parts = new ArrayList();

  Aggregate(StructType schema, byte[] serialised) throws Exception {
    super(schema);
    scala.Tuple2 both = (scala.Tuple2) Loading.load(serialised);
    List expressions = Evaluator.list((scala.collection.Iterable) both._1());
    scala.collection.immutable.Seq columns = (scala.collection.immutable.Seq) both._2();
    inputs = columns.size();
    int count = expressions.size();
    updating = new AggregateFunction[count];
    merging = new AggregateFunction[count];
    filters = new BasePredicate[count];
    List buffer = new ArrayList(), other = new ArrayList(), starts = new ArrayList(), updates = new ArrayList();
    List merges = new ArrayList(), ends = new ArrayList(), results = new ArrayList();
    boolean declared = false;
    for (int i = 0; i < count; i++) {
      AggregateExpression expression = (AggregateExpression) expressions.get(i);
      AggregateFunction function = expression.aggregateFunction();
      Expression filter = expression.filter().isDefined() ? (Expression) expression.filter().get() : null;
      List own = Evaluator.list(function.aggBufferAttributes());
      if (function instanceof DeclarativeAggregate) {
        DeclarativeAggregate made = (DeclarativeAggregate) function;
        List steps = Evaluator.list(made.updateExpressions());
        for (int j = 0; j < own.size(); j++)
          updates.add(filter == null ? steps.get(j) : new If(filter, (Expression) steps.get(j), (Expression) own.get(j)));
        starts.addAll(Evaluator.list(made.initialValues()));
        merges.addAll(Evaluator.list(made.mergeExpressions()));
        ends.add(made.evaluateExpression());
        declared = true;
      } else {
        ImperativeAggregate moved = ((ImperativeAggregate) function).withNewMutableAggBufferOffset(buffer.size());
        merging[i] = moved.withNewInputAggBufferOffset(buffer.size());
        updating[i] = (AggregateFunction) BindReferences$.MODULE$.bindReference(
            moved, org.apache.spark.sql.catalyst.expressions.package$.MODULE$.AttributeSeq(columns), false);
        if (filter != null) filters[i] = Predicate$.MODULE$.create(filter, columns);
        List nothing = Collections.nCopies(own.size(), NoOp$.MODULE$);
        starts.addAll(nothing);
        updates.addAll(nothing);
        merges.addAll(nothing);
        ends.add(NoOp$.MODULE$);
      }
      buffer.addAll(own);
      other.addAll(Evaluator.list(function.inputAggBufferAttributes()));
      results.add(function.dataType());
    }
    this.declared = declared;
    types = new DataType[buffer.size()];
    for (int j = 0; j < types.length; j++) types[j] = ((Attribute) buffer.get(j)).dataType();
    typeList = Evaluator.seq(Arrays.asList(types));
    List withInput = new ArrayList(buffer), withOther = new ArrayList(buffer);
    withInput.addAll(Evaluator.list(columns));
    withOther.addAll(other);
    initial = MutableProjection$.MODULE$.create(Evaluator.seq(starts), Evaluator.seq(new ArrayList()));
    update = MutableProjection$.MODULE$.create(Evaluator.seq(updates), Evaluator.seq(withInput));
    merge = MutableProjection$.MODULE$.create(Evaluator.seq(merges), Evaluator.seq(withOther));
    evaluate = MutableProjection$.MODULE$.create(Evaluator.seq(ends), Evaluator.seq(buffer));
    evaluate.target(new SpecificInternalRow(Evaluator.seq(results)));
    input = UnsafeProjection.create(columns, columns);
    state = UnsafeProjection.create(types);
    result = UnsafeProjection.create((DataType[]) results.toArray(new DataType[0]));
  }

  byte[] run(byte[][] fields) throws Exception {
    if (fields.length == 1) return results(fields[0]);
    try {
      readRows(fields[0]);
      byte[][] rows = new byte[parts.size()][];
      for (int i = 0; i < rows.length; i++) {
        if (parts.get(i) == null) continue;
        rows[i] = stored((InternalRow) parts.set(i, null));
        if (fields.length > 2) {
          InternalRow buffer = create();
          mergeInto(buffer, rows[i]);
          rows[i] = stored(buffer);
        }
      }
      return merged(fields[1], rows);
    } finally { parts.clear(); }
  }

  /** Adds a row of the input to its part. */
  void take(int number, InternalRow row) {
    int part = row.getInt(inputs);
    while (parts.size() <= part) parts.add(null);
    InternalRow buffer = (InternalRow) parts.get(part);
    if (buffer == null) {
      buffer = create();
      parts.set(part, buffer);
    }
    InternalRow values = (InternalRow) input.apply(row);
    if (declared) update.target(buffer).apply(joined.apply(buffer, values));
    for (int i = 0; i < updating.length; i++)
      if (updating[i] != null && (filters[i] == null || filters[i].eval(values)))
        ((ImperativeAggregate) updating[i]).update(buffer, values);
  }

  private byte[] merged(byte[] plan, byte[][] rows) throws IOException {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(plan));
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(1 << 14);
    DataOutputStream out = new DataOutputStream(bytes);
    InternalRow buffer = null;
    int current = -1;
    while (in.available() > 0) {
      int group = in.readInt(), part = in.readInt(), length = in.readInt();
      if (group != current) {
        if (buffer != null) write(out, stored(buffer));
        buffer = create();
        current = group;
      }
      byte[] row = length < 0 ? (part < 0 ? null : rows[part]) : read(in, length);
      if (row != null) mergeInto(buffer, row);
    }
    if (buffer != null) write(out, stored(buffer));
    return bytes.toByteArray();
  }

  private byte[] results(byte[] rows) throws IOException {
    ArrowWriter out = writer();
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(rows));
    while (in.available() > 0) {
      InternalRow buffer = create();
      mergeInto(buffer, read(in, in.readInt()));
      InternalRow values = (InternalRow) evaluate.apply(buffer);
      for (int i = 0; i < merging.length; i++)
        if (merging[i] != null) values.update(i, ((Expression) merging[i]).eval(buffer));
      out.write((InternalRow) result.apply(values));
    }
    return stream(out);
  }

  /** The buffers of a group without rows. */
  private InternalRow create() {
    InternalRow buffer = new SpecificInternalRow(typeList);
    if (declared) initial.target(buffer).apply(new GenericInternalRow(0));
    for (int i = 0; i < merging.length; i++)
      if (merging[i] != null) ((ImperativeAggregate) merging[i]).initialize(buffer);
    return buffer;
  }

  private void mergeInto(InternalRow buffer, byte[] bytes) {
    UnsafeRow row = new UnsafeRow(types.length);
    row.pointTo(bytes, bytes.length);
    if (declared) merge.target(buffer).apply(joined.apply(buffer, row));
    for (int i = 0; i < merging.length; i++)
      if (merging[i] != null) ((ImperativeAggregate) merging[i]).merge(buffer, row);
  }

  /** Buffers as a row of state. They cannot be used afterwards. */
  private byte[] stored(InternalRow buffer) {
    for (int i = 0; i < merging.length; i++)
      if (merging[i] instanceof TypedImperativeAggregate)
        ((TypedImperativeAggregate) merging[i]).serializeAggregateBufferInPlace(buffer);
    return ((UnsafeRow) state.apply(buffer)).copy().getBytes();
  }

  private static byte[] read(DataInputStream in, int length) throws IOException {
    byte[] bytes = new byte[length];
    in.readFully(bytes);
    return bytes;
  }

  private static void write(DataOutputStream out, byte[] bytes) throws IOException {
    out.writeInt(bytes.length);
    out.write(bytes);
  }
}
