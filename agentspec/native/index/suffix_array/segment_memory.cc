#include "index/suffix_array/segment_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace agentspec {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct FileDescriptor {
  int value;
  ~FileDescriptor() { ::close(value); }
};

}  // namespace

std::unique_ptr<SegmentMemory> SegmentMemory::allocate(std::size_t num_bytes) {
  void* pages = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  // Queries access memory at random, so huge pages save TLB misses. They are not required.
  (void)::madvise(pages, num_bytes, MADV_HUGEPAGE);
  try {
    return std::unique_ptr<SegmentMemory>(new SegmentMemory(static_cast<std::byte*>(pages), num_bytes));
  } catch (...) {
    ::munmap(pages, num_bytes);
    throw;
  }
}

std::unique_ptr<SegmentMemory> SegmentMemory::map_file(const std::string& path) {
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.value < 0) throw_errno("cannot open the segment '" + path + "'");
  struct stat status {};
  if (::fstat(file.value, &status) != 0) throw_errno("cannot read the segment '" + path + "'");
  const auto num_bytes = static_cast<std::size_t>(status.st_size);
  if (!S_ISREG(status.st_mode)) {
    throw std::system_error(EINVAL, std::generic_category(), "'" + path + "' is not a regular file");
  }
  if (num_bytes == 0) return std::make_unique<SegmentMemory>(std::vector<std::byte>{});
  void* pages = ::mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file.value, 0);
  if (pages == MAP_FAILED) throw_errno("cannot map the segment '" + path + "'");
  try {
    return std::unique_ptr<SegmentMemory>(new SegmentMemory(static_cast<std::byte*>(pages), num_bytes));
  } catch (...) {
    ::munmap(pages, num_bytes);
    throw;
  }
}

SegmentMemory::SegmentMemory(std::vector<std::byte> bytes)
    : bytes_(std::move(bytes)), data_(bytes_.data()), num_bytes_(bytes_.size()) {}

SegmentMemory::~SegmentMemory() {
  if (bytes_.empty() && num_bytes_ > 0) ::munmap(data_, num_bytes_);
}

}  // namespace agentspec
