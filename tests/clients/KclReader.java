import java.util.List;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.services.cloudwatch.CloudWatchAsyncClient;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.kinesis.common.ConfigsBuilder;
import software.amazon.kinesis.common.InitialPositionInStream;
import software.amazon.kinesis.common.InitialPositionInStreamExtended;
import software.amazon.kinesis.common.KinesisClientUtil;
import software.amazon.kinesis.common.StreamConfig;
import software.amazon.kinesis.common.StreamIdentifier;
import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.exceptions.InvalidStateException;
import software.amazon.kinesis.exceptions.ShutdownException;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.lifecycle.events.InitializationInput;
import software.amazon.kinesis.lifecycle.events.LeaseLostInput;
import software.amazon.kinesis.lifecycle.events.ProcessRecordsInput;
import software.amazon.kinesis.lifecycle.events.ShardEndedInput;
import software.amazon.kinesis.lifecycle.events.ShutdownRequestedInput;
import software.amazon.kinesis.metrics.MetricsLevel;
import software.amazon.kinesis.processor.RecordProcessorCheckpointer;
import software.amazon.kinesis.processor.ShardRecordProcessor;
import software.amazon.kinesis.processor.SingleStreamTracker;
import software.amazon.kinesis.retrieval.KinesisClientRecord;
import software.amazon.kinesis.retrieval.RetrievalSpecificConfig;
import software.amazon.kinesis.retrieval.fanout.FanOutConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * One worker of an application that reads a stream with the Kinesis Client Library.
 *
 * <p>It prints a line for each thing that happens to it, and leaves in order when its standard input
 * ends. Its clients have their default settings and find the server by the environment; only what
 * waits for minutes is shortened.
 */
final class KclReader {
    private static final String APPLICATION = "kcl";

    private final String stream;
    private final String worker;

    private KclReader(String stream, String worker) {
        this.stream = stream;
        this.worker = worker;
    }

    public static void main(String[] arguments) throws Exception {
        new KclReader(arguments[0], arguments[1]).run(arguments[2].equals("fan-out"));
    }

    private void run(boolean fanOut) throws Exception {
        Scheduler scheduler = scheduler(fanOut);
        Thread thread = new Thread(scheduler, "scheduler");
        thread.start();
        System.in.readAllBytes();
        boolean inOrder = scheduler.startGracefulShutdown().get(60, TimeUnit.SECONDS);
        thread.join();
        print("left", inOrder ? "in order" : "with work");
        System.exit(0);
    }

    private Scheduler scheduler(boolean fanOut) {
        KinesisAsyncClient kinesis =
                KinesisClientUtil.createKinesisAsyncClient(KinesisAsyncClient.builder());
        ConfigsBuilder configs =
                new ConfigsBuilder(
                        new SingleStreamTracker(
                                StreamIdentifier.singleStreamInstance(stream),
                                InitialPositionInStreamExtended.newInitialPosition(
                                        InitialPositionInStream.TRIM_HORIZON)),
                        APPLICATION,
                        kinesis,
                        DynamoDbAsyncClient.create(),
                        CloudWatchAsyncClient.create(),
                        worker,
                        Processor::new);
        RetrievalSpecificConfig retrieval =
                fanOut
                        ? new FanOutConfig(kinesis).streamName(stream).applicationName(APPLICATION)
                        : new PollingConfig(stream, kinesis);
        return new Scheduler(
                configs.checkpointConfig(),
                configs.coordinatorConfig().parentShardPollIntervalMillis(500),
                sooner(configs.leaseManagementConfig()),
                configs.lifecycleConfig(),
                configs.metricsConfig().metricsLevel(MetricsLevel.NONE),
                configs.processorConfig(),
                configs.retrievalConfig().retrievalSpecificConfig(retrieval));
    }

    /** Leases that pass on in seconds; and no look at how busy the machine is. */
    private static LeaseManagementConfig sooner(LeaseManagementConfig leases) {
        leases.workerUtilizationAwareAssignmentConfig()
                .disableWorkerMetrics(true)
                .workerMetricsReporterFreqInMillis(1_000);
        return leases.failoverTimeMillis(3_000)
                .shardSyncIntervalMillis(1_000)
                .leaseAssignmentIntervalMillis(1_000L)
                .dynamoDbLockBasedLeaderLeaseDurationInMillis(6_000)
                .dynamoDbLockBasedLeaderHeartbeatPeriodInMillis(1_000);
    }

    private static void print(String... words) {
        System.out.println(String.join(" ", words));
    }

    /** Prints the records of one shard, and checkpoints after each batch. */
    private static final class Processor implements ShardRecordProcessor {
        private String shard;

        @Override
        public void initialize(InitializationInput input) {
            shard = input.shardId();
            print("began", shard, input.extendedSequenceNumber().sequenceNumber());
        }

        @Override
        public void processRecords(ProcessRecordsInput input) {
            List<KinesisClientRecord> records = input.records();
            for (KinesisClientRecord record : records) {
                byte[] data = new byte[record.data().remaining()];
                record.data().get(data);
                print("read", shard, record.sequenceNumber(), record.partitionKey(), new String(data));
            }
            if (!records.isEmpty()) {
                checkpoint(input.checkpointer());
            }
        }

        @Override
        public void leaseLost(LeaseLostInput input) {
            print("lost", shard);
        }

        @Override
        public void shardEnded(ShardEndedInput input) {
            print("ended", shard);
            checkpoint(input.checkpointer());
        }

        @Override
        public void shutdownRequested(ShutdownRequestedInput input) {
            checkpoint(input.checkpointer());
        }

        private void checkpoint(RecordProcessorCheckpointer checkpointer) {
            try {
                checkpointer.checkpoint();
            } catch (ShutdownException error) {
                print("late", shard);
            } catch (InvalidStateException error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
