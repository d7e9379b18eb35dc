import java.util.Properties;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.streaming.connectors.kinesis.FlinkKinesisConsumer;
import org.apache.flink.streaming.connectors.kinesis.config.AWSConfigConstants;
import org.apache.flink.streaming.connectors.kinesis.config.ConsumerConfigConstants;
import org.apache.flink.streaming.connectors.kinesis.serialization.KinesisDeserializationSchema;

/** Counts the records of a stream with Flink's source and enhanced fan-out, on two cores. */
@SuppressWarnings("deprecation") // Maven has no newer source
final class FlinkCounter {
    public static void main(String[] arguments) throws Exception {
        Counter.want(Long.parseLong(arguments[2]));
        Properties source = new Properties();
        source.setProperty(
                AWSConfigConstants.AWS_ENDPOINT, System.getenv("AWS_ENDPOINT_URL_KINESIS"));
        source.setProperty(AWSConfigConstants.AWS_REGION, System.getenv("AWS_REGION"));
        source.setProperty(ConsumerConfigConstants.STREAM_INITIAL_POSITION, "TRIM_HORIZON");
        source.setProperty(ConsumerConfigConstants.RECORD_PUBLISHER_TYPE, "EFO");
        source.setProperty(ConsumerConfigConstants.EFO_REGISTRATION_TYPE, "NONE");
        source.setProperty(
                ConsumerConfigConstants.EFO_CONSUMER_ARN_PREFIX + "." + arguments[0], arguments[1]);
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(2);
        job.addSource(new FlinkKinesisConsumer<>(arguments[0], new Data(), source))
                .addSink(new Count());
        job.execute();
    }

    private static final class Data implements KinesisDeserializationSchema<byte[]> {
        @Override
        public byte[] deserialize(
                byte[] data, String key, String number, long arrived, String stream, String shard) {
            return data;
        }

        @Override
        public TypeInformation<byte[]> getProducedType() {
            return TypeInformation.of(byte[].class);
        }
    }

    private static final class Count implements SinkFunction<byte[]> {
        @Override
        public void invoke(byte[] data, Context context) {
            Counter.add(1);
        }
    }
}
