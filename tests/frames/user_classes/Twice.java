package user;

import org.apache.spark.sql.api.java.UDF1;

/** A function: twice a number. It refuses 13 at length, and without words of Spark's. */
public class Twice implements UDF1<Long, Long> {
  public Long call(Long value) {
    if (value != null && value == 13) throw new IllegalStateException("thirteen" + ".".repeat(100000));
    return value == null ? null : 2 * value;
  }
}
