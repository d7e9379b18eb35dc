package fanout.testing;

import java.io.IOException;
import java.util.EnumSet;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * The files of this machine. It calls a function before and after some of them get their names.
 * Spark's own compiler, Janino, compiles it: it knows no lambda.
 */
public class WatchedFileSystem extends LocalFileSystem {
  private Pattern names = Pattern.compile("(?!)");
  private Consumer watcher;

  /** Calls a function with "before" or "after" and a path, for each path that has a part like this. */
  public void watch(String pattern, Consumer function) {
    watcher = function;
    names = Pattern.compile(pattern);
  }

  public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite,
      int buffer, short replication, long block, Progressable progress) throws IOException {
    tell("before", path);
    FSDataOutputStream created =
        super.create(path, permission, overwrite, buffer, replication, block, progress);
    tell("after", path);
    return created;
  }

  public FSDataOutputStream create(Path path, FsPermission permission, EnumSet flags, int buffer,
      short replication, long block, Progressable progress, Options.ChecksumOpt checksum)
      throws IOException {
    tell("before", path);
    FSDataOutputStream created =
        super.create(path, permission, flags, buffer, replication, block, progress, checksum);
    tell("after", path);
    return created;
  }

  public boolean rename(Path from, Path to) throws IOException {
    tell("before", to);
    boolean renamed = super.rename(from, to);
    tell("after", to);
    return renamed;
  }

  private void tell(String when, Path path) {
    if (names.matcher(path.toString()).find()) {
      watcher.accept(when + " " + path);
    }
  }
}
