#include "llama_parts.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace agentspec {

LlamaParts::LlamaParts(Llama model, std::size_t num_threads)
    : models_(std::max<std::size_t>(num_threads, 1), std::move(model)), pool_(models_.size()) {}

std::vector<std::size_t> LlamaParts::split(std::size_t num_rows) const {
  const std::size_t num_parts = std::clamp<std::size_t>(num_rows, 1, models_.size());
  std::vector<std::size_t> starts;
  for (std::size_t part = 0; part <= num_parts; ++part) starts.push_back(part * num_rows / num_parts);
  return starts;
}

void LlamaParts::run(std::size_t num_parts, const std::function<void(Llama&, std::size_t)>& work) {
  if (num_parts == 1) {
    work(models_.front(), 0);
    return;
  }
  std::vector<std::exception_ptr> failures(num_parts);
  const auto guarded = [&](std::size_t, std::size_t part) {
    try {
      work(models_[part], part);
    } catch (...) {
      failures[part] = std::current_exception();
    }
  };
  pool_.for_rows(num_parts, guarded);
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace agentspec
