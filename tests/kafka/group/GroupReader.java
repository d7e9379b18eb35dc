import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic as a member of a group of the new protocol, and commits what it has got.
 *
 * <p>Arguments: servers, topic, group. It prints a line of JSON for the records of a partition when
 * they are committed. The end of its standard input ends it.
 */
public final class GroupReader {
  public static void main(String[] arguments) throws Exception {
    Properties options = new Properties();
    options.put("bootstrap.servers", arguments[0]);
    options.put("group.id", arguments[2]);
    options.put("group.protocol", "consumer");
    options.put("enable.auto.commit", "false");
    options.put("auto.offset.reset", "earliest");
    options.put("key.deserializer", ByteArrayDeserializer.class.getName());
    options.put("value.deserializer", ByteArrayDeserializer.class.getName());
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(options)) {
      consumer.subscribe(List.of(arguments[1]));
      while (System.in.available() == 0) {
        var records = consumer.poll(Duration.ofMillis(100));
        if (records.isEmpty()) {
          continue;
        }
        consumer.commitSync();
        for (var partition : records.partitions()) {
          String offsets =
              records.records(partition).stream()
                  .map(ConsumerRecord::offset)
                  .map(String::valueOf)
                  .collect(Collectors.joining(", "));
          System.out.printf("{\"split\": \"%s\", \"offsets\": [%s]}%n", partition, offsets);
        }
      }
    }
  }
}
