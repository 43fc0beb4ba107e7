// The engine's operations for a store: deletion, files and snapshots.

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>

#include "engine.h"
#include "errors.h"
#include "index/output_id.h"
#include "index/suffix_array/segment_file.h"

namespace agentspec {

// Finds the open requests whose indexes contain more than their own text, and adds them to `found` to be
// indexed again. Looks at one namespace, or at all if `name` is null. Does not throw if `found` has room for
// all requests.
void Engine::take_rewritten(const std::string* name, std::vector<RequestPtr>& found) {
  if (name == nullptr) {
    tenants_.count_erasure_everywhere();
  } else {
    tenants_.count_erasure(*name);
  }
  for (const auto& [request_id, request] : requests_) {
    if (name != nullptr && request->name != *name) continue;
    // Its last draft may come from text that was erased.
    request->drafted.clear();
    if (!request->is_ready || !request->index->is_rewritten()) continue;
    request->is_ready = false;
    request->matches.clear();  // they count the tokens of the index that goes
    found.push_back(request);
  }
}

void Engine::build_anew(const std::vector<RequestPtr>& requests) {
  for (const RequestPtr& request : requests) {
    try {
      quick_worker_.post([this, request] {
        std::vector<Token> prompt = request->index->text();
        prompt.resize(request->num_prompt_tokens);
        request->index.reset();
        build(request, prompt);
      });
    } catch (const std::bad_alloc&) {
      // The request goes on without an index and gets no drafts.
    }
  }
}

void Engine::clear() {
  std::vector<GlobalPart> freed;
  std::list<Conversations::Entry> freed_texts;
  std::vector<RequestPtr> rewritten;
  {
    const std::lock_guard conversations_lock(conversations_mutex_);
    const std::lock_guard lock(mutex_);
    rewritten.reserve(requests_.size());
    freed = global_.clear();
    waiting_.clear();
    tenants_.forget_all();
    take_rewritten(nullptr, rewritten);
    freed_texts = conversations_.clear();
  }
  build_anew(rewritten);
}

bool Engine::erase_namespace(const std::string& name) {
  std::vector<GlobalPart> freed;
  std::list<Conversations::Entry> freed_texts;
  std::vector<RequestPtr> rewritten;
  std::size_t num_waiting;
  {
    const std::lock_guard conversations_lock(conversations_mutex_);
    const std::lock_guard lock(mutex_);
    rewritten.reserve(requests_.size());
    freed = global_.erase_namespace(name);
    num_waiting = std::erase_if(waiting_, [&](const auto& output) { return output.second.name == name; });
    tenants_.forget(name);
    take_rewritten(&name, rewritten);
    freed_texts = conversations_.erase(name);
  }
  build_anew(rewritten);
  return !freed.empty() || num_waiting > 0;
}

bool Engine::erase_output(std::uint64_t output_id) {
  // The namespace of an evicted output is unknown, and conversations may still contain its text.
  return erase(
             nullptr, [=](const OutputRecord& output) { return output.id == output_id; },
             Scope::kAllIfEvicted) > 0;
}

std::size_t Engine::erase_request(const std::string& name, std::string_view request_id) {
  const std::uint32_t hash = request_hash(request_id);
  return erase(
      &name, [=](const OutputRecord& output) { return request_hash_of(output.id) == hash; }, Scope::kNamed);
}

std::size_t Engine::expire(const std::string& name, std::int64_t before) {
  return erase(&name, [=](const OutputRecord& output) { return output.time < before; }, Scope::kWhereFound);
}

// Deletes outputs of one namespace, or of all if `name` is null, and returns their number. Kept conversations
// are deleted too, since they may quote the outputs.
std::size_t Engine::erase(const std::string* name, const GlobalIndex::IsErased& is_erased, Scope scope) {
  GlobalIndex::Erasure erasure;
  std::list<Conversations::Entry> freed;
  std::vector<RequestPtr> rewritten;
  std::size_t num_erased;
  {
    const std::lock_guard conversations_lock(conversations_mutex_);
    const std::lock_guard lock(mutex_);
    const auto is_erased_waiting = [&](const auto& output) {
      const auto& [id, waiting] = output;
      return (name == nullptr || waiting.name == *name) && is_erased({id, 0, 0, waiting.time});
    };
    // 1. Everything that may fail for lack of memory.
    rewritten.reserve(requests_.size());
    erasure = global_.plan_erasure(name, is_erased);
    std::unordered_set<std::string> names(erasure.names().begin(), erasure.names().end());
    for (const auto& output : waiting_) {
      if (is_erased_waiting(output)) names.insert(output.second.name);
    }
    if (scope == Scope::kNamed) names.insert(*name);
    // 2. An output that is being added is also among the waiting ones.
    global_.erase(erasure);
    num_erased = erasure.num_outputs() + std::erase_if(waiting_, is_erased_waiting);
    if (names.empty() && scope == Scope::kAllIfEvicted && global_.num_evicted() > 0) {
      take_rewritten(nullptr, rewritten);
      freed = conversations_.clear();
    }
    for (const std::string& one : names) {
      take_rewritten(&one, rewritten);
      freed.splice(freed.end(), conversations_.erase(one));
    }
  }
  build_anew(rewritten);
  if (num_erased > 0) compact_later();
  return num_erased;
}

GlobalSnapshot Engine::snapshot(const std::string& name) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> waiting;  // serial numbers and ids
  GlobalSnapshot snapshot;
  {
    const std::lock_guard lock(mutex_);
    snapshot = global_.snapshot(name);
    for (const auto& [id, output] : waiting_) {
      if (output.name == name) waiting.emplace_back(output.serial, id);
    }
  }
  std::sort(waiting.begin(), waiting.end());
  for (const auto& [serial, id] : waiting) snapshot.unsealed.push_back(id);
  return snapshot;
}

std::vector<std::uint64_t> Engine::load_segments(const std::string& name,
                                                 std::span<const std::span<const std::byte>> blobs,
                                                 std::span<const std::uint64_t> known) {
  const Segment::Identity expected = config_.identity(SegmentKind::kOutputs);
  std::unordered_set<std::uint64_t> left_out(known.begin(), known.end());
  std::vector<GlobalIndex::DeadSegment> segments;
  std::vector<std::uint64_t> taken;
  for (const std::span<const std::byte> blob : blobs) {
    GlobalIndex::DeadSegment& added = segments.emplace_back();
    try {
      added.segment = from_blob(blob, &expected);
    } catch (const SegmentError& error) {
      throw SegmentError("segment " + std::to_string(segments.size()) + " of " +
                         std::to_string(blobs.size()) + " cannot be used: " + error.what());
    }
    const std::span<const OutputRecord> outputs = added.segment->outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (left_out.insert(outputs[i].id).second) {
        taken.push_back(outputs[i].id);
        continue;
      }
      const std::size_t end = i + 1 < outputs.size() ? outputs[i + 1].begin : added.segment->num_points();
      added.dead.emplace_back(outputs[i].begin, static_cast<std::uint32_t>(end));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    global_.add_segments(name, std::move(segments));
  }
  compact_later();
  return taken;
}

std::vector<NamespaceStats> Engine::namespaces() const {
  const std::lock_guard lock(mutex_);
  return global_.namespaces();
}

void Engine::attach_corpus(const std::string& path, std::vector<std::string> names) {
  const Segment::Identity expected = config_.identity(SegmentKind::kCorpus);
  std::shared_ptr<const Segment> segment = agentspec::load(path, &expected);
  std::shared_ptr<const Segment> freed;
  const std::lock_guard lock(mutex_);
  corpora_.reserve(corpora_.size() + 1);
  freed = take_corpus(path);
  corpora_.push_back({path, next_corpus_++, std::move(segment), std::move(names)});
}

bool Engine::detach_corpus(const std::string& path) {
  // It is unmapped after the mutex is released, so that no draft waits for that.
  std::shared_ptr<const Segment> freed;
  const std::lock_guard lock(mutex_);
  freed = take_corpus(path);
  return freed != nullptr;
}

std::shared_ptr<const Segment> Engine::take_corpus(const std::string& path) {
  const auto found = std::find_if(corpora_.begin(), corpora_.end(),
                                  [&](const Corpus& corpus) { return corpus.path == path; });
  if (found == corpora_.end()) return nullptr;
  std::shared_ptr<const Segment> segment = std::move(found->segment);
  corpora_.erase(found);
  return segment;
}

}  // namespace agentspec
