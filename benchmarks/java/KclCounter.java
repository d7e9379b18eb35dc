import java.util.UUID;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;

/** Counts the records of a stream with the Kinesis Client Library and enhanced fan-out. */
final class KclCounter {
    public static void main(String[] arguments) {
        Counter.want(Long.parseLong(arguments[2]));
        String stream = arguments[0];
        KinesisAsyncClient kinesis =
                KinesisClientUtil.createKinesisAsyncClient(KinesisAsyncClient.builder());
        ConfigsBuilder configs =
                new ConfigsBuilder(
                        new SingleStreamTracker(
                                StreamIdentifier.singleStreamInstance(stream),
                                InitialPositionInStreamExtended.newInitialPosition(
                                        InitialPositionInStream.TRIM_HORIZON)),
                        // No other run has left leases.
                        "counter-" + UUID.randomUUID(),
                        kinesis,
                        DynamoDbAsyncClient.create(),
                        CloudWatchAsyncClient.create(),
                        "worker",
                        Processor::new);
        var leases = configs.leaseManagementConfig().shardSyncIntervalMillis(1_000);
        leases.workerUtilizationAwareAssignmentConfig().disableWorkerMetrics(true);
        new Scheduler(
                        configs.checkpointConfig(),
                        configs.coordinatorConfig(),
                        leases.leaseAssignmentIntervalMillis(1_000L),
                        configs.lifecycleConfig(),
                        configs.metricsConfig().metricsLevel(MetricsLevel.NONE),
                        configs.processorConfig(),
                        configs.retrievalConfig()
                                .retrievalSpecificConfig(
                                        new FanOutConfig(kinesis).consumerArn(arguments[1])))
                .run();
    }

    private static final class Processor implements ShardRecordProcessor {
        @Override
        public void initialize(InitializationInput input) {}

        @Override
        public void processRecords(ProcessRecordsInput input) {
            if (!input.records().isEmpty()) {
                Counter.add(input.records().size());
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {}

        @Override
        public void shardEnded(ShardEndedInput input) {}

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {}
    }
}
