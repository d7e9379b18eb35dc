import java.util.Properties;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.streaming.connectors.kinesis.FlinkKinesisConsumer;
import org.apache.flink.streaming.connectors.kinesis.config.AWSConfigConstants;
import org.apache.flink.streaming.connectors.kinesis.config.ConsumerConfigConstants;
import org.apache.flink.streaming.connectors.kinesis.serialization.KinesisDeserializationSchema;

/**
 * A job that reads a stream with Flink's source, on a cluster in this process.
 *
 * <p>It prints a line for each record, and is cancelled when its standard input ends: its source has
 * no end of its own.
 */
@SuppressWarnings("deprecation") // Maven has no newer source
final class FlinkReader {
    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2);
        job.enableCheckpointing(1_000);
        job.addSource(
                        new FlinkKinesisConsumer<>(
                                arguments[1], new Line(), source(arguments[0], arguments[2])))
                .returns(Types.STRING)
                .addSink(new Print());
        JobClient running = job.executeAsync();
        System.in.readAllBytes();
        running.cancel().get();
        System.exit(0);
    }

    private static Properties source(String endpoint, String how) {
        Properties properties = new Properties();
        properties.setProperty(AWSConfigConstants.AWS_ENDPOINT, endpoint);
        properties.setProperty(AWSConfigConstants.AWS_REGION, "us-east-1");
        properties.setProperty(AWSConfigConstants.AWS_ACCESS_KEY_ID, "testing");
        properties.setProperty(AWSConfigConstants.AWS_SECRET_ACCESS_KEY, "testing");
        properties.setProperty(ConsumerConfigConstants.STREAM_INITIAL_POSITION, "TRIM_HORIZON");
        properties.setProperty(
                ConsumerConfigConstants.SHARD_DISCOVERY_INTERVAL_MILLIS, String.valueOf(1_000));
        if (how.equals("fan-out")) {
            properties.setProperty(ConsumerConfigConstants.RECORD_PUBLISHER_TYPE, "EFO");
            properties.setProperty(ConsumerConfigConstants.EFO_CONSUMER_NAME, "flink");
        }
        return properties;
    }

    private static final class Line implements KinesisDeserializationSchema<String> {
        @Override
        public String deserialize(
                byte[] data, String key, String number, long arrived, String stream, String shard) {
            return String.join(" ", "read", shard, number, key, new String(data));
        }

        @Override
        public TypeInformation<String> getProducedType() {
            return Types.STRING;
        }
    }

    private static final class Print implements SinkFunction<String> {
        @Override
        public void invoke(String line, Context context) {
            System.out.println(line);
        }
    }
}
