#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drafting/drafter.h"
#include "drafting/estimator.h"
#include "drafting/plain_drafter.h"
#include "index/conversations.h"
#include "index/global_index.h"
#include "index/suffix_array/suffix_array.h"
#include "index/suffix_automaton.h"
#include "string_hash.h"
#include "tenants.h"
#include "worker.h"

namespace agentspec {

// The fields of agentspec.EngineConfig, which has checked them.
struct EngineConfig {
  Token num_token_ids = 0;  // tokens must be in [0, num_token_ids)
  DraftLimits limits;
  bool plain_rule = false;
  std::int32_t max_draft_tokens = 31;
  std::size_t budget_bytes = 0;
  std::size_t conversation_bytes = 0;
  std::size_t prompt_tail = 0;  // tokens of a prompt's end that are kept before its output
  std::size_t max_growing_tokens = 8192;
  std::size_t num_threads = 1;
  bool background = false;
  std::array<std::uint8_t, 32> tokenizer{};
  std::vector<float> weights;  // Estimator::kNumWeights
  float learning_rate = 0.0F;

  // Of the segments that are of use.
  [[nodiscard]] Segment::Identity identity(SegmentKind kind) const {
    return {num_token_ids, tokenizer, kind};
  }
};

struct EngineStats {
  std::size_t open_requests = 0;
  std::size_t request_bytes = 0;
  std::size_t conversation_bytes = 0;
  std::size_t waiting_outputs = 0;  // closed, not yet in the global index
  std::uint64_t spared_tokens = 0;  // of prompts, found in earlier turns
  std::size_t corpora = 0;
  GlobalIndexStats global;
};

// What became of a row that was to be drafted for. The values are agentspec.Outcome's.
enum class Outcome : std::uint8_t {
  kDrafted = 0,
  kNoRoom = 1,      // no token may be drafted
  kNotIndexed = 2,  // the prompt's index is being built
  kNoOutputs = 3,   // its own text gave nothing, and its namespace has neither outputs nor corpora
  kNoMatch = 4,     // the text's end occurred nowhere before
  kUnlikely = 5,    // it did, but nothing that followed is likely enough
  kNoMemory = 6,
  kNotOpen = 7,    // it is closed, or was never opened
  kOtherText = 8,  // its text has another length than the caller says
};

// The drafts of a batch, row after row; row i has the nodes offsets[i] to offsets[i + 1], its root first.
struct DraftBatch {
  std::vector<std::int32_t> offsets;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> parents;  // within the row; -1 for the root
  std::vector<float> estimates;
  std::vector<std::uint8_t> sources;
  std::vector<std::int32_t> match_lens;  // one a row, as are the scores and outcomes
  std::vector<float> scores;
  std::vector<std::uint8_t> outcomes;
};

// The same in memory of the caller, for any draft of so many rows and nodes. `offsets` has one more than
// rows.
struct DraftSpans {
  std::span<std::int32_t> offsets;
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> parents;
  std::span<float> estimates;
  std::span<std::uint8_t> sources;
  std::span<std::int32_t> match_lens;
  std::span<float> scores;
  std::span<std::uint8_t> outcomes;
  std::span<std::int64_t> lengths;  // tokens of each row's text, as are the next one a row
  std::span<std::int32_t> rooms;    // the most nodes that were allowed, the root not counted
};

// Indexes the texts of open requests and the outputs of finished ones, and drafts from both. Safe for
// threads. A call that throws has changed nothing.
//
// With `background`, indexes are built, extended by outputs, sealed, merged and freed by two threads of the
// engine's own, one for what is quick and one for what is not; without, by the thread that calls. One mutex
// guards all state; it is held while a batch is drafted or a slice of a text is indexed, and for longer only
// where an output is erased from a part that grows, which is then indexed anew.
// An index that is being built belongs to its builder alone, and sealed segments never change.
class Engine {
  struct Request;

 public:
  static constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);

  explicit Engine(const EngineConfig& config);
  ~Engine();

  // The requests of a batch, found once and for all steps that they take together. One that is closed
  // meanwhile is passed over.
  class Rows {
   public:
    [[nodiscard]] std::size_t size() const { return requests_.size(); }

   private:
    friend class Engine;
    std::vector<std::shared_ptr<Request>> requests_;  // null: was not open when it was looked for
  };

  // The text may grow to `max_length` tokens, prompt included; nothing is drafted beyond.
  void open(const std::string& request_id, std::span<const Token> prompt, const std::string& name,
            std::size_t max_length = kNoLimit);
  [[nodiscard]] Rows rows(std::span<const std::string_view> request_ids) const;
  // Appends to each row's text the tokens that a step accepted. `accepted` is [b, width]: how many, and
  // these. A row grows only if its text has lengths[i] tokens; pass none to grow all. What the last draft is
  // to be judged by is kept for learn(). A row whose tokens are outside of the vocabulary, or whose index
  // cannot grow, loses its index and gets no drafts any more. Returns how many rows that happened to.
  std::size_t grow(const Rows& rows, std::span<const std::int64_t> accepted, std::size_t width,
                   std::span<const std::int64_t> lengths);
  // Learns from what grow() appended: apart from it, because nothing that is drafted next needs it.
  void learn(const Rows& rows);
  // As the draft() below, for rows. No row has more than `max_tokens` nodes. Where `lengths` are given, a row
  // whose text has another length gets its root only.
  std::size_t draft(const Rows& rows, std::span<const std::int64_t> lengths, std::int32_t max_tokens,
                    const DraftSpans& out);
  void extend(const std::string& request_id, std::span<const Token> tokens);
  // `max_tokens` is empty or gives each row's limit; none may be negative. Requests whose index is not built
  // yet get their root only. `batch` is overwritten; its memory is used again.
  void draft(std::span<const std::string_view> request_ids, std::span<const std::int32_t> max_tokens,
             DraftBatch& batch);
  void draft(std::span<const std::string> request_ids, std::span<const std::int32_t> max_tokens,
             DraftBatch& batch) {
    draft(std::vector<std::string_view>(request_ids.begin(), request_ids.end()), max_tokens, batch);
  }
  // Writes to the first elements of `out`; returns the number of nodes. Throws ConfigError if not all that
  // the limits allow would fit.
  std::size_t draft(std::span<const std::string_view> request_ids, std::span<const std::int32_t> max_tokens,
                    const DraftSpans& out);
  // Ends the request; with `keep`, the first num_output_tokens of its output go to the global index. Returns
  // the output's id there (output_id.h), 0 if it is not kept.
  std::uint64_t close(const std::string& request_id, bool keep, std::optional<std::size_t> num_output_tokens);
  // Adds an output of another engine as close() would have: `tokens` are the end of its prompt, of which so
  // many are kept as the engine keeps of its own, and the output. Returns false if there is no output, if one
  // of that id waits, or if there is no memory to keep it.
  bool add(const std::string& name, std::uint64_t output_id, std::span<const Token> tokens,
           std::size_t num_prompt_tail, std::int64_t time);

  [[nodiscard]] std::size_t num_tokens(const std::string& request_id) const;
  [[nodiscard]] bool is_open(const std::string& request_id) const;

  // Waits until all that was given is indexed, sealed and merged as far as it is to be.
  void flush();
  // Waits until all that was given can be drafted from. Takes no mutex that a draft takes.
  void wait_indexed();
  // Once these five return, nothing that they delete is drafted from, outputs that wait included; others are
  // drafted from as before.
  void clear();  // all namespaces, and what estimates have learnt, as erase_namespace() does for one
  bool erase_namespace(const std::string& name);
  bool erase_output(std::uint64_t output_id);
  // These return how many outputs they have deleted: those of a request, or those from before a time.
  std::size_t erase_request(const std::string& name, std::string_view request_id);
  std::size_t expire(const std::string& name, std::int64_t before);

  // Writes a namespace's outputs to a file as one segment; returns how many.
  std::size_t save(const std::string& name, const std::string& path);
  // Adds a file's outputs to a namespace, before those it has; returns how many.
  std::size_t load(const std::string& name, const std::string& path);

  // All that the namespace has, at one moment; see GlobalSnapshot.
  [[nodiscard]] GlobalSnapshot snapshot(const std::string& name) const;
  // Adds copies of segments, given oldest first, to a namespace before the outputs it has: all or none.
  // Outputs with `known` ids, and those that come again, are left out. Returns the ids of the others.
  std::vector<std::uint64_t> load_segments(const std::string& name,
                                           std::span<const std::span<const std::byte>> blobs,
                                           std::span<const std::uint64_t> known);
  [[nodiscard]] std::vector<NamespaceStats> namespaces() const;

  // Lets the namespaces draft from a corpus, or all namespaces if there are none.
  void attach_corpus(const std::string& path, std::vector<std::string> names);
  bool detach_corpus(const std::string& path);

  // Drafter::trials() for a request whose next tokens are known.
  void trials(const std::string& request_id, std::span<const Token> truth, std::vector<Drafter::Trial>& rows);
  // Of the namespace's estimates.
  [[nodiscard]] std::vector<float> weights(const std::string& name) const;

  [[nodiscard]] EngineStats stats() const;
  void check_integrity() const;

 private:
  // The match of a request's text in one part, carried from draft to draft. It needs only the tokens that the
  // text has grown by; it is looked for anew when the part has grown.
  struct KnownMatch {
    std::uint64_t part_id = 0;
    std::int32_t part_tokens = 0;
    std::size_t text_length = 0;  // of the request's text that was matched
    StateMatch state;
    ContextMatch context;
  };

  struct Request {
    std::string name;
    std::shared_ptr<Tenant> tenant;
    std::unique_ptr<TextIndex> index;  // its builder's until is_ready
    bool is_ready = false;
    bool is_open = true;
    std::size_t num_prompt_tokens = 0;
    std::size_t max_length = kNoLimit;
    Token last_token = 0;
    std::vector<Token> prompt_tail;
    std::vector<Token> output;
    std::vector<KnownMatch> matches;  // of global parts and corpora, in the order they were drafted from
    std::vector<DraftNode> drafted;   // the last draft, to learn from
    std::vector<DraftNode> judged;    // an earlier one, and the tokens that came of it: not learnt from yet
    std::vector<Token> judged_by;
    std::vector<PartMatch> global;  // scratch of match_parts(), as are the next two
    std::vector<PartMatch> corpora;
    std::vector<KnownMatch> new_matches;
    Draft draft;
    Outcome outcome = Outcome::kDrafted;  // of the last draft

    [[nodiscard]] std::size_t length() const { return num_prompt_tokens + output.size(); }
  };
  using RequestPtr = std::shared_ptr<Request>;

  // An output on its way to the index.
  struct Waiting {
    std::string name;
    std::int64_t time;
    std::uint64_t serial;  // of those that ever waited: tells it from an erased one of the same id
  };

  struct Corpus {
    std::string path;
    std::uint64_t id;
    std::shared_ptr<const Segment> segment;
    std::vector<std::string> names;
  };

  void check_tokens(std::span<const Token> tokens) const;
  void check_not_open(const std::string& request_id) const;
  [[nodiscard]] const RequestPtr& find(std::string_view request_id) const;
  void build(const RequestPtr& request, const std::vector<Token>& prompt);
  void retire(const RequestPtr& request, bool keep, std::uint64_t num_erasures);
  void leave(Request& request);
  [[nodiscard]] std::uint64_t expect(const std::string& name, const Output& output);
  bool post_output(const std::string& name, Output&& output, std::uint64_t serial);
  void add_output(const std::string& name, const Output& output, std::uint64_t serial);
  std::size_t merge_and_save(const std::string& name, const std::string& path);
  void compact_later();
  void compact();
  // Which namespaces an erasure is felt in, besides those in which it finds something.
  enum class Scope { kWhereFound, kNamed, kAllIfEvicted };
  std::size_t erase(const std::string* name, const GlobalIndex::IsErased& is_erased, Scope scope);
  void take_rewritten(const std::string* name, std::vector<RequestPtr>& found);
  void build_anew(const std::vector<RequestPtr>& requests);
  std::shared_ptr<const Segment> take_corpus(const std::string& path);
  bool match_parts(Request& request) const;
  void match_part(Request& request, const IndexPart& part, std::uint64_t id, std::size_t& known,
                  std::vector<PartMatch>& matches) const;
  [[nodiscard]] DraftSources sources(const Request& request) const;
  void learn(Request& request, std::span<const DraftNode> drafted, std::span<const Token> tokens);
  void learn_judged(Request& request);
  bool grow(Request& request, std::span<const std::int64_t> tokens);
  std::size_t draft_into(const DraftSpans& out);
  void find_rows(std::span<const std::string_view> request_ids, std::span<const std::int32_t> max_tokens);
  void draft_rows(DraftBatch& batch);
  void draft_row(std::size_t thread, Request& request, std::int32_t max_nodes);

  const EngineConfig config_;
  mutable std::mutex mutex_;  // guards all down to waiting_
  std::unordered_map<std::string, RequestPtr, StringHash, std::equal_to<>> requests_;
  Tenants tenants_;
  GlobalIndex global_;
  std::vector<Corpus> corpora_;
  std::vector<Drafter> drafters_;  // one a thread, as are the plain ones
  std::vector<PlainDrafter> plain_drafters_;
  std::uint32_t next_output_;  // starts anywhere, so that ids of engines differ
  std::uint64_t next_corpus_;
  std::uint64_t spared_tokens_ = 0;
  // By ids. What is erased is taken out, and is then not added, or not any further.
  std::unordered_map<std::uint64_t, Waiting> waiting_;
  std::uint64_t next_waiting_ = 1;
  std::vector<RequestPtr> rows_;  // scratch of draft(), as are the next three
  std::vector<std::int32_t> limits_;
  std::vector<const Request*> sorted_;
  DraftBatch batch_;

  mutable std::mutex conversations_mutex_;  // taken before mutex_ where both are held
  Conversations conversations_;
  std::mutex adding_mutex_;      // held while an output is added in slices
  std::mutex compacting_mutex_;  // held while parts are merged
  RowPool pool_;
  // The last members: their threads end before what they work on.
  Worker slow_worker_;
  Worker quick_worker_;
};

}  // namespace agentspec
