import java.math.BigInteger;
import java.net.URI;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.core.SdkBytes;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.kinesis.KinesisAsyncClient;
import software.amazon.awssdk.services.kinesis.model.ChildShard;
import software.amazon.awssdk.services.kinesis.model.Consumer;
import software.amazon.awssdk.services.kinesis.model.ConsumerStatus;
import software.amazon.awssdk.services.kinesis.model.EncryptionType;
import software.amazon.awssdk.services.kinesis.model.MetricsName;
import software.amazon.awssdk.services.kinesis.model.PutRecordsRequestEntry;
import software.amazon.awssdk.services.kinesis.model.Record;
import software.amazon.awssdk.services.kinesis.model.ScalingType;
import software.amazon.awssdk.services.kinesis.model.Shard;
import software.amazon.awssdk.services.kinesis.model.ShardIteratorType;
import software.amazon.awssdk.services.kinesis.model.StreamDescriptionSummary;
import software.amazon.awssdk.services.kinesis.model.StreamMode;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardEvent;
import software.amazon.awssdk.services.kinesis.model.SubscribeToShardResponseHandler;
import software.amazon.awssdk.services.kinesis.model.Tag;

/**
 * Writes records to a stream and reads them by enhanced fan-out and by polling, while it splits and
 * merges shards. Then it calls every other operation of a stream and of a consumer. The client has
 * its default settings: HTTP/2 and CBOR.
 *
 * <p>It prints a line for each thing that it sees; the words of a line are separated by spaces.
 */
final class KinesisReader {
    private static final int BATCH = 500;
    private static final String KEY = "alias/aws/kinesis";

    private final KinesisAsyncClient kinesis;
    private final String stream;
    private final Set<String> subscribed = ConcurrentHashMap.newKeySet();
    private final Set<String> ended = ConcurrentHashMap.newKeySet();
    private final CountDownLatch unread;
    private int written = 0;

    private KinesisReader(KinesisAsyncClient kinesis, String stream, int records) {
        this.kinesis = kinesis;
        this.stream = stream;
        this.unread = new CountDownLatch(records);
    }

    public static void main(String[] arguments) throws Exception {
        int batches = Integer.parseInt(arguments[2]);
        try (KinesisAsyncClient kinesis =
                KinesisAsyncClient.builder()
                        .endpointOverride(URI.create(arguments[0]))
                        .region(Region.US_EAST_1)
                        .credentialsProvider(
                                StaticCredentialsProvider.create(
                                        AwsBasicCredentials.create("testing", "testing")))
                        .build()) {
            new KinesisReader(kinesis, arguments[1], 3 * batches * BATCH).run(batches);
        }
    }

    private void run(int batches) throws Exception {
        refused();
        String arn =
                kinesis.describeStreamSummary(b -> b.streamName(stream))
                        .join()
                        .streamDescriptionSummary()
                        .streamARN();
        String consumer =
                kinesis.registerStreamConsumer(b -> b.streamARN(arn).consumerName("java"))
                        .join()
                        .consumer()
                        .consumerARN();
        while (kinesis.describeStreamConsumer(b -> b.consumerARN(consumer))
                        .join()
                        .consumerDescription()
                        .consumerStatus()
                != ConsumerStatus.ACTIVE) {
            Thread.sleep(100);
        }
        List<String> shards = new ArrayList<>();
        for (Shard shard : kinesis.listShards(b -> b.streamName(stream)).join().shards()) {
            shards.add(shard.shardId());
            subscribe(consumer, shard.shardId());
        }
        put(batches);
        kinesis.splitShard(
                        b ->
                                b.streamName(stream)
                                        .shardToSplit(shards.get(0))
                                        .newStartingHashKey("1000000000000000000000000000000000000"))
                .join();
        put(batches);
        kinesis.mergeShards(
                        b ->
                                b.streamName(stream)
                                        .shardToMerge(shards.get(1))
                                        .adjacentShardToMerge(shards.get(2)))
                .join();
        put(batches);
        if (!unread.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException(unread.getCount() + " records are missing");
        }
        poll(shards.get(0));
        administer();
    }

    /** All other operations, on a stream of their own. */
    private void administer() {
        String name = stream + "-settings";
        kinesis.createStream(b -> b.streamName(name).shardCount(2)).join();
        check(kinesis.listStreams().join().streamNames().equals(List.of(stream, name)));
        kinesis.updateShardCount(
                        b ->
                                b.streamName(name)
                                        .targetShardCount(4)
                                        .scalingType(ScalingType.UNIFORM_SCALING))
                .join();
        configure(name);
        StreamDescriptionSummary summary =
                kinesis.describeStreamSummary(b -> b.streamName(name))
                        .join()
                        .streamDescriptionSummary();
        check(summary.openShardCount() == 4);
        check(summary.retentionPeriodHours() == 36);
        check(summary.encryptionType() == EncryptionType.KMS);
        check(isNow(summary.streamCreationTimestamp()));
        check(summary.enhancedMonitoring().get(0).shardLevelMetricsAsStrings().size() == 1);
        String arn = summary.streamARN();
        kinesis.disableEnhancedMonitoring(
                        b -> b.streamName(name).shardLevelMetrics(MetricsName.INCOMING_BYTES))
                .join();
        kinesis.stopStreamEncryption(
                        b -> b.streamName(name).encryptionType(EncryptionType.KMS).keyId(KEY))
                .join();
        kinesis.putResourcePolicy(b -> b.resourceARN(arn).policy("{}")).join();
        check(kinesis.getResourcePolicy(b -> b.resourceARN(arn)).join().policy().equals("{}"));
        kinesis.deleteResourcePolicy(b -> b.resourceARN(arn)).join();
        kinesis.updateStreamMode(
                        b ->
                                b.streamARN(arn)
                                        .streamModeDetails(m -> m.streamMode(StreamMode.ON_DEMAND)))
                .join();
        var described = kinesis.describeStream(b -> b.streamName(name)).join().streamDescription();
        check(described.streamModeDetails().streamMode() == StreamMode.ON_DEMAND);
        check(described.encryptionType() == EncryptionType.NONE);
        check(kinesis.describeLimits().join().shardLimit() > 0);
        consumers(arn);
        kinesis.deleteStream(b -> b.streamName(name)).join();
    }

    private void configure(String name) {
        kinesis.addTagsToStream(b -> b.streamName(name).tags(Map.of("team", "a", "tier", "b")))
                .join();
        kinesis.removeTagsFromStream(b -> b.streamName(name).tagKeys("tier")).join();
        var tags = kinesis.listTagsForStream(b -> b.streamName(name)).join().tags();
        check(tags.equals(List.of(Tag.builder().key("team").value("a").build())));
        kinesis.increaseStreamRetentionPeriod(b -> b.streamName(name).retentionPeriodHours(48))
                .join();
        kinesis.decreaseStreamRetentionPeriod(b -> b.streamName(name).retentionPeriodHours(36))
                .join();
        kinesis.startStreamEncryption(
                        b -> b.streamName(name).encryptionType(EncryptionType.KMS).keyId(KEY))
                .join();
        kinesis.enableEnhancedMonitoring(
                        b -> b.streamName(name).shardLevelMetrics(MetricsName.INCOMING_BYTES))
                .join();
    }

    private void consumers(String arn) {
        Consumer consumer =
                kinesis.registerStreamConsumer(
                                b -> b.streamARN(arn).consumerName("java").tags(Map.of("a", "b")))
                        .join()
                        .consumer();
        check(isNow(consumer.consumerCreationTimestamp()));
        var listed = kinesis.listStreamConsumers(b -> b.streamARN(arn)).join().consumers();
        check(listed.get(0).consumerARN().equals(consumer.consumerARN()));
        var tags = kinesis.listTagsForResource(b -> b.resourceARN(consumer.consumerARN())).join();
        check(tags.tags().equals(List.of(Tag.builder().key("a").value("b").build())));
        kinesis.tagResource(b -> b.resourceARN(arn).tags(Map.of("cost", "b"))).join();
        kinesis.untagResource(b -> b.resourceARN(arn).tagKeys("cost")).join();
        kinesis.deregisterStreamConsumer(b -> b.consumerARN(consumer.consumerARN())).join();
    }

    private static void check(boolean holds) {
        if (!holds) {
            throw new IllegalStateException("an answer is not the expected one");
        }
    }

    /** Calls that the service refuses. */
    private void refused() {
        try {
            kinesis.describeStream(b -> b.streamName("unknown")).join();
        } catch (CompletionException error) {
            print("refused", error.getCause().getClass().getSimpleName());
        }
        try {
            kinesis.putRecord(
                            b ->
                                    b.streamName(stream)
                                            .partitionKey("key")
                                            .explicitHashKey(BigInteger.TWO.pow(128).toString())
                                            .data(SdkBytes.fromUtf8String("data")))
                    .join();
        } catch (CompletionException error) {
            print("refused", error.getCause().getClass().getSimpleName());
        }
    }

    private void put(int batches) {
        for (int batch = 0; batch < batches; batch++) {
            List<PutRecordsRequestEntry> entries = new ArrayList<>();
            for (int index = 0; index < BATCH; index++, written++) {
                ByteBuffer data = ByteBuffer.allocate(Integer.BYTES).putInt(0, written);
                String key = "key-" + written;
                entries.add(
                        PutRecordsRequestEntry.builder()
                                .partitionKey(key)
                                .data(SdkBytes.fromByteBuffer(data))
                                .build());
            }
            int failed =
                    kinesis.putRecords(b -> b.streamName(stream).records(entries))
                            .join()
                            .failedRecordCount();
            print("put", BATCH - failed);
        }
    }

    private void subscribe(String consumer, String shard) {
        if (!subscribed.add(shard)) {
            return;
        }
        SubscribeToShardResponseHandler handler =
                SubscribeToShardResponseHandler.builder()
                        .onResponse(response -> print("subscribed", shard))
                        .onError(error -> print("failed", shard, error))
                        .subscriber(
                                SubscribeToShardResponseHandler.Visitor.builder()
                                        .onSubscribeToShardEvent(
                                                event -> read(consumer, shard, event))
                                        .build())
                        .build();
        kinesis.subscribeToShard(
                b ->
                        b.consumerARN(consumer)
                                .shardId(shard)
                                .startingPosition(p -> p.type(ShardIteratorType.TRIM_HORIZON)),
                handler);
    }

    private void read(String consumer, String shard, SubscribeToShardEvent event) {
        event.records().forEach(record -> print("read", describe(shard, record)));
        if (event.continuationSequenceNumber() == null) {
            ended.add(shard);
            print("ended", shard);
            for (ChildShard child : event.childShards()) {
                if (ended.containsAll(child.parentShards())) {
                    subscribe(consumer, child.shardId());
                }
            }
        }
        event.records().forEach(record -> unread.countDown());
    }

    private void poll(String shard) {
        String iterator =
                kinesis.getShardIterator(
                                b ->
                                        b.streamName(stream)
                                                .shardId(shard)
                                                .shardIteratorType(ShardIteratorType.TRIM_HORIZON))
                        .join()
                        .shardIterator();
        while (iterator != null) {
            String next = iterator;
            var answer = kinesis.getRecords(b -> b.shardIterator(next)).join();
            answer.records().forEach(record -> print("polled", describe(shard, record)));
            iterator = answer.nextShardIterator();
        }
    }

    private static String describe(String shard, Record record) {
        Instant arrived = record.approximateArrivalTimestamp();
        return String.join(
                " ",
                shard,
                record.sequenceNumber(),
                record.partitionKey(),
                String.valueOf(record.data().asByteBuffer().getInt()),
                isNow(arrived) ? "now" : arrived.toString());
    }

    private static boolean isNow(Instant time) {
        return Math.abs(Instant.now().toEpochMilli() - time.toEpochMilli()) < 600_000;
    }

    private static synchronized void print(Object... words) {
        StringBuilder line = new StringBuilder();
        for (Object word : words) {
            line.append(line.length() == 0 ? "" : " ").append(word);
        }
        System.out.println(line);
    }
}
