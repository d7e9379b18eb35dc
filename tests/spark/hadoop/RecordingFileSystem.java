package fanout.testing;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.hadoop.fs.Abortable;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.util.Progressable;

/**
 * Files in memory. A file gets its name when its stream is closed. A test says what the file system
 * can do, and reads what was done. Spark's own compiler, Janino, compiles it: it knows no lambda.
 */
public class RecordingFileSystem extends FileSystem {
  private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

  private final Map files = new TreeMap();
  private final Map headers = new TreeMap();
  private final List calls = new ArrayList();
  private final Set capabilities = new HashSet();
  private boolean exclusive;
  private String rivalName;
  private byte[] rival;
  private boolean losingAnswers;
  private boolean refusingPuts;
  private boolean refusingRenames;

  /** The path or its streams have a capability. */
  public void offer(String capability) {
    capabilities.add(capability);
  }

  /** A file that was not to be replaced is refused when it is closed, and not when it is opened. */
  public void checkAtClose() {
    exclusive = true;
  }

  /** Another writer has a file of this name, and content, when the next file is closed. */
  public void overtake(String name, byte[] content) {
    rivalName = name;
    rival = content;
  }

  /** The next file that is closed is there, but its writer is told of an error. */
  public void loseAnswer() {
    losingAnswers = true;
  }

  public void refusePuts() {
    refusingPuts = true;
  }

  public void refuseRenames() {
    refusingRenames = true;
  }

  public List calls() {
    return calls;
  }

  public List names() {
    return new ArrayList(files.keySet());
  }

  public boolean hasPathCapability(Path path, String capability) {
    return capabilities.contains(capability);
  }

  public FSDataOutputStreamBuilder createFile(Path path) {
    return new Builder(this, path);
  }

  public FSDataOutputStream create(Path path, FsPermission permission, boolean overwrite,
      int buffer, short replication, long block, Progressable progress) throws IOException {
    calls.add("create" + (overwrite ? " or replace" : ""));
    if (!overwrite && !exclusive) {
      refuseTaken(path);
    }
    return open(path, !overwrite && exclusive, null);
  }

  FSDataOutputStream open(Path path, boolean checked, String header) throws IOException {
    return new FSDataOutputStream(new Put(this, path, checked, header), null);
  }

  void note(String call) {
    calls.add(call);
  }

  boolean offers(String capability) {
    return capabilities.contains(capability);
  }

  void put(Path path, byte[] content, boolean checked, String header) throws IOException {
    if (refusingPuts) {
      throw new IOException("the put was refused");
    }
    if (rival != null) {
      files.put(rivalName, rival);
      headers.put(rivalName, "of the rival");
      rival = null;
    }
    if (checked) {
      refuseTaken(path);
    }
    files.put(path.toString(), content);
    headers.put(path.toString(), header);
    if (losingAnswers) {
      losingAnswers = false;
      throw new IOException("the answer was lost");
    }
  }

  private void refuseTaken(Path path) throws IOException {
    if (files.containsKey(path.toString())) {
      throw new FileAlreadyExistsException(path.toString());
    }
  }

  public boolean rename(Path from, Path to) throws IOException {
    calls.add("rename");
    if (refusingRenames || files.containsKey(to.toString())) {
      return false;
    }
    files.put(to.toString(), files.remove(from.toString()));
    return true;
  }

  public byte[] getXAttr(Path path, String name) {
    String header = (String) headers.get(path.toString());
    return header == null || !name.equals("header.fanout-attempt") ? null : header.getBytes();
  }

  public FSDataInputStream open(Path path, int buffer) throws IOException {
    getFileStatus(path);
    return new FSDataInputStream(new Bytes((byte[]) files.get(path.toString())));
  }

  public FileStatus getFileStatus(Path path) throws IOException {
    byte[] content = (byte[]) files.get(path.toString());
    if (content == null) {
      throw new FileNotFoundException(path.toString());
    }
    return new FileStatus((long) content.length, false, 1, 1L, 0L, path);
  }

  public boolean delete(Path path, boolean recursive) {
    return files.remove(path.toString()) != null;
  }

  public boolean mkdirs(Path path, FsPermission permission) {
    return true;
  }

  public URI getUri() {
    return URI.create("recording:///");
  }

  public FSDataOutputStream append(Path path, int buffer, Progressable progress) {
    throw new UnsupportedOperationException();
  }

  public FileStatus[] listStatus(Path path) {
    throw new UnsupportedOperationException();
  }

  public void setWorkingDirectory(Path path) {
    throw new UnsupportedOperationException();
  }

  public Path getWorkingDirectory() {
    return new Path("/");
  }

  /** What S3A's builder does with the options of a conditional create. */
  public static class Builder extends FSDataOutputStreamBuilder {
    private final RecordingFileSystem owner;
    private final Path path;

    Builder(RecordingFileSystem owner, Path path) {
      super(owner, path);
      this.owner = owner;
      this.path = path;
    }

    public FSDataOutputStreamBuilder getThisBuilder() {
      return this;
    }

    public FSDataOutputStream build() throws IOException {
      boolean conditional = getOptions().getBoolean(CONDITIONAL, false);
      owner.note("create " + (conditional ? "unless taken" : "or replace"));
      String header = getOptions().get("fs.s3a.create.header.fanout-attempt");
      return owner.open(path, conditional, header);
    }
  }

  static class Put extends ByteArrayOutputStream
      implements Abortable, StreamCapabilities, Syncable {
    private final RecordingFileSystem owner;
    private final Path path;
    private final boolean checked;
    private final String header;

    Put(RecordingFileSystem owner, Path path, boolean checked, String header) {
      this.owner = owner;
      this.path = path;
      this.checked = checked;
      this.header = header;
    }

    public void close() throws IOException {
      owner.note("close");
      owner.put(path, toByteArray(), checked, header);
    }

    public Abortable.AbortableResult abort() {
      owner.note("abort");
      return null;
    }

    public void hflush() {
      owner.note("hflush");
    }

    public void hsync() {
      owner.note("hsync of " + size() + " bytes");
    }

    public boolean hasCapability(String capability) {
      return owner.offers(capability);
    }
  }

  static class Bytes extends FSInputStream {
    private final byte[] content;
    private int position;

    Bytes(byte[] content) {
      this.content = content;
    }

    public int read() {
      return position == content.length ? -1 : content[position++] & 255;
    }

    public void seek(long to) {
      position = (int) to;
    }

    public long getPos() {
      return position;
    }

    public boolean seekToNewSource(long target) {
      return false;
    }
  }
}
