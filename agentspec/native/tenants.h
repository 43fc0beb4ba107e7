#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "drafting/estimator.h"
#include "string_hash.h"

namespace agentspec {

// The engine's record of a namespace, apart from the texts.
struct Tenant {
  std::string_view name;
  // Number of erasures so far. An index that was taken from an earlier turn can hold text that its request
  // does not have. If this number has changed since, such an index must not be used.
  std::uint64_t num_erasures = 0;
  std::unique_ptr<Estimator> estimator;  // null until something is learnt
  std::list<Tenant*>::iterator place;    // its place in learning_, if it has an estimator
};

// The namespaces that have open requests or have learnt something. Each namespace has its own estimator, so
// one namespace cannot influence the drafts of another. At most kMaxLearning namespaces have one; the next
// one replaces the namespace that has not learnt for the longest time.
//
// Not thread-safe: the owner guards every call, and every use of a tenant, with one mutex.
class Tenants {
 public:
  static constexpr std::size_t kMaxLearning = 1024;

  Tenants(std::span<const float> weights, float rate) : initial_(weights, rate) {}

  // Returns the namespace's tenant, which stays as long as anyone else holds it.
  [[nodiscard]] std::shared_ptr<Tenant> enter(const std::string& name);
  // Gives back a tenant that enter() returned.
  void leave(std::shared_ptr<Tenant> tenant);

  // The estimator to draft with; `tenant` may be null.
  [[nodiscard]] const Estimator& estimator(const Tenant* tenant) const;
  [[nodiscard]] const Estimator& estimator(std::string_view name) const;
  // The estimator to learn with. If it throws std::bad_alloc, the tenant's estimates are unchanged.
  [[nodiscard]] Estimator& learner(Tenant& tenant);
  [[nodiscard]] std::size_t num_learning() const { return learning_.size(); }

  void count_erasure(std::string_view name);
  void count_erasure_everywhere();
  // Both discard what was learnt: the estimates start from the initial weights.
  void forget(std::string_view name);
  void forget_all();

 private:
  using Map = std::unordered_map<std::string, std::shared_ptr<Tenant>, StringHash, std::equal_to<>>;

  void drop_if_idle(std::string_view name);

  const Estimator initial_;
  Map tenants_;
  std::list<Tenant*> learning_;  // most recent learner first
};

}  // namespace agentspec
