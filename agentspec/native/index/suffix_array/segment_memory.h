#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace agentspec {

// Owns the bytes of a segment: pages of this process, a mapped file, or a vector. Freed pages return to the
// system at once.
class SegmentMemory {
 public:
  // Allocates zeroed pages in this process. Throws std::bad_alloc.
  [[nodiscard]] static std::unique_ptr<SegmentMemory> allocate(std::size_t num_bytes);
  // Maps the file read-only. Throws std::system_error.
  [[nodiscard]] static std::unique_ptr<SegmentMemory> map_file(const std::string& path);

  explicit SegmentMemory(std::vector<std::byte> bytes);
  ~SegmentMemory();
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, num_bytes_}; }
  // Only for memory that allocate() made.
  [[nodiscard]] std::byte* writable() { return data_; }

 private:
  SegmentMemory(std::byte* mapped, std::size_t num_bytes) : data_(mapped), num_bytes_(num_bytes) {}

  std::vector<std::byte> bytes_;  // empty if the bytes are mapped pages
  std::byte* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

}  // namespace agentspec
