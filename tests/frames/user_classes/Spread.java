package user;

import org.apache.spark.sql.Encoder;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.expressions.Aggregator;

/** A typed aggregate: the difference of the largest and the smallest value. */
public class Spread extends Aggregator<Long, String, Long> {
  public String zero() { return ""; }

  public String reduce(String range, Long value) { return merge(range, value + " " + value); }

  public String merge(String one, String other) {
    if (one.isEmpty() || other.isEmpty()) return one + other;
    return Math.min(part(one, 0), part(other, 0)) + " " + Math.max(part(one, 1), part(other, 1));
  }

  public Long finish(String range) { return range.isEmpty() ? null : part(range, 1) - part(range, 0); }

  public Encoder<String> bufferEncoder() { return Encoders.STRING(); }

  public Encoder<Long> outputEncoder() { return Encoders.LONG(); }

  private static long part(String range, int number) { return Long.parseLong(range.split(" ")[number]); }
}
