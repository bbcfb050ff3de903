package user

import org.apache.spark.sql.api.java.UDF1
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.catalyst.expressions.codegen.CodegenFallback
import org.apache.spark.sql.types._

/** A generator: the even values, and at the end the number of all values. */
case class Tally(child: Expression) extends UnaryExpression with Generator with CodegenFallback {
  private var seen = 0L

  def elementSchema: StructType = new StructType().add("what", LongType, true)

  override def eval(row: InternalRow): IterableOnce[InternalRow] = {
    seen += 1
    val value = child.eval(row).asInstanceOf[Long]
    if (value % 2 == 0) Seq(InternalRow(value)) else Nil
  }

  override def terminate(): IterableOnce[InternalRow] = if (seen > 0) Seq(InternalRow(-seen)) else Nil

  protected def withNewChildInternal(made: Expression): Tally = copy(child = made)
}

/** Makes the generator for Spark's table of functions. */
class MakeTally extends (Seq[Expression] => Expression) {
  def apply(children: Seq[Expression]): Expression = Tally(children.head)
}

/** Functions that are Scala's lambdas, one of which has a value of its surroundings. */
object Lambdas {
  private val bonus = 100L

  def plus(more: Long): UDF1[java.lang.Long, java.lang.Long] = value => value + more + bonus
}
