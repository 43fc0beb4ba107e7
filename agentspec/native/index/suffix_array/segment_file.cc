#include "index/suffix_array/segment_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "errors.h"
#include "index/suffix_array/segment_layout.h"
#include "index/suffix_array/segment_memory.h"

namespace agentspec {
namespace {

[[noreturn]] void throw_errno(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), "cannot write the segment '" + path + "'");
}

// A new file, which is removed unless it is published under its final name.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path) {
    static std::atomic<unsigned> serial{0};
    temporary_ = path + ".new." + std::to_string(::getpid()) + "." + std::to_string(serial++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor_ < 0) throw_errno(path_);
  }
  ~NewFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno(path_);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  // The bytes reach the disk before the name does, and the name before this returns.
  void publish() {
    if (::fsync(descriptor_) != 0) throw_errno(path_);
    if (::close(std::exchange(descriptor_, -1)) != 0) throw_errno(path_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw_errno(path_);
    temporary_.clear();
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_descriptor < 0) return;
    // Some file systems cannot do this. The file is complete all the same.
    (void)::fsync(folder_descriptor);
    ::close(folder_descriptor);
  }

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

std::shared_ptr<const Segment> open_segment(std::unique_ptr<const SegmentMemory> memory,
                                            const Segment::Identity* expected) {
  validate(memory->bytes(), expected);
  return std::make_shared<const Segment>(std::move(memory));
}

}  // namespace

void save(const Segment& segment, const std::string& path) {
  NewFile file(path);
  file.write(segment.blob());
  file.publish();
}

std::shared_ptr<const Segment> load(const std::string& path, const Segment::Identity* expected) {
  try {
    return open_segment(SegmentMemory::map_file(path), expected);
  } catch (const SegmentError& error) {
    throw SegmentError("'" + path + "' cannot be used: " + error.what());
  }
}

std::shared_ptr<const Segment> from_blob(std::span<const std::byte> blob, const Segment::Identity* expected) {
  // An empty block cannot be mapped.
  if (blob.empty()) return open_segment(std::make_unique<SegmentMemory>(std::vector<std::byte>{}), expected);
  std::unique_ptr<SegmentMemory> memory = SegmentMemory::allocate(blob.size());
  std::memcpy(memory->writable(), blob.data(), blob.size());
  return open_segment(std::move(memory), expected);
}

}  // namespace agentspec
