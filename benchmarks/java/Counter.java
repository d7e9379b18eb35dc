import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Counts records, and prints the figures of this process as JSON when there were enough.
 *
 * <p>The clock starts after the first ones: what it costs to load classes and to connect is left
 * out.
 */
final class Counter {
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private static final AtomicLong COUNTED = new AtomicLong();
    private static volatile long wanted;
    private static volatile long first;
    private static volatile long started;
    private static volatile long startedCpu;

    private Counter() {}

    /** Says how many records to count; this process ends with its standard input. */
    static void want(long records) {
        wanted = records;
        Thread watch =
                new Thread(
                        () -> {
                            try {
                                System.in.readAllBytes();
                            } catch (IOException error) {
                                // It ended.
                            }
                            Runtime.getRuntime().halt(0);
                        });
        watch.setDaemon(true);
        watch.start();
    }

    static void add(long records) {
        if (started == 0 && begin(records)) {
            return;
        }
        long counted = COUNTED.addAndGet(records);
        if (counted >= wanted - first && counted - records < wanted - first) {
            print(counted);
        }
    }

    /** Starts the clock, unless another thread has. */
    private static synchronized boolean begin(long records) {
        if (started != 0) {
            return false;
        }
        first = records;
        startedCpu = PROCESS.getProcessCpuTime();
        started = System.nanoTime();
        return true;
    }

    private static void print(long records) {
        double seconds = (System.nanoTime() - started) / 1e9;
        double cpu = (PROCESS.getProcessCpuTime() - startedCpu) / 1e9;
        System.out.printf(
                "{\"records_per_second\": %f, \"cpu_seconds_per_million\": %f, "
                        + "\"peak_rss_bytes\": %d}%n",
                records / seconds, cpu / records * 1e6, peakBytes());
        System.out.flush();
    }

    /** Returns the most memory that this process has had; on Linux. */
    private static long peakBytes() {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            return lines.filter(line -> line.startsWith("VmHWM:"))
                    .mapToLong(line -> 1024 * Long.parseLong(line.replaceAll("\\D", "")))
                    .findFirst()
                    .orElse(0);
        } catch (IOException error) {
            return 0;
        }
    }
}
