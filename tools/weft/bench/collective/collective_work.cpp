// SPDX-License-Identifier: Apache-2.0
#include "collective_work.hpp"

#include "collective_values.hpp"
#include "weft/memory/buffer.hpp"

namespace weft::tool {

namespace {

collective_options options_of(const collective_task& task) {
  collective_options made;
  made.algorithm = task.algorithm;
  made.order = task.order;
  made.root = rank{task.shape.root};
  return made;
}

template <class T>
class all_ranks final : public collective_work {
 public:
  all_ranks(communicator& all, const collective_task& task) : all_(all), task_(task), values_(task) {
    const auto n = static_cast<std::size_t>(task.shape.ranks);
    memory_.reserve(2 * n);
    in_.reserve(n);
    out_.reserve(n);
    for (int r = 0; r < task.shape.ranks; ++r) {
      const rank_places at = places_of(task, r);
      const device on = all.on(rank{r});
      const device_span<T> first = memory_.emplace_back(on, std::max<std::size_t>(1, at.first_count)).span();
      const device_span<T> second = at.second_count > 0 ? memory_.emplace_back(on, at.second_count).span() : first;
      in_.push_back(first.subspan(at.in, at.in_count));
      out_.push_back(second.subspan(at.out, at.out_count));
    }
  }

  void load() override {
    for (const buffer<T>& one : memory_) fill(one.span().template as<std::byte>(), std::byte{0xEE});
    for (std::size_t r = 0; r < in_.size(); ++r) write_input(values_, static_cast<int>(r), in_[r]);
  }

  void run() override {
    const collective_run started = start();
    started.wait();
    algorithm_ = started.algorithm();
  }

  [[nodiscard]] collective_finding check() const override { return check_outputs<T>(values_, out_, 0); }
  [[nodiscard]] collective_algorithm algorithm() const override { return algorithm_; }

 private:
  collective_run start() {
    collective_options how = options_of(task_);
    const reduction_op op = operation_of(task_.operation);
    const auto root = static_cast<std::size_t>(task_.shape.root);
    switch (task_.shape.what) {
      case collective::all_reduce:
        return all_.all_reduce(in_, out_, op, how);
      case collective::reduce:
        return all_.reduce(in_, out_[root], op, how);
      case collective::reduce_scatter:
        return all_.reduce_scatter(in_, out_, op, how);
      case collective::all_gather:
        return all_.all_gather(in_, out_, how);
      case collective::broadcast:
        return all_.broadcast(out_, how);
      case collective::scatter:
        return all_.scatter(in_[root], out_, how);
      case collective::gather:
        return all_.gather(in_, out_[root], how);
      case collective::all_to_all:
        break;
    }
    how.counts = task_.shape.counts;
    return all_.all_to_all(in_, out_, how);
  }

  communicator& all_;
  collective_task task_;
  collective_values<T> values_;
  std::vector<buffer<T>> memory_;
  std::vector<device_span<T>> in_, out_;
  collective_algorithm algorithm_ = collective_algorithm::automatic;
};

template <class T>
class one_rank final : public collective_work {
 public:
  one_rank(rank_communicator& mine, const collective_task& task) : mine_(mine), task_(task), values_(task) {
    // what is symmetric has one size on all ranks
    std::size_t first = 1, second = 0;
    for (int r = 0; r < task.shape.ranks; ++r) {
      const rank_places at = places_of(task, r);
      first = std::max(first, at.first_count);
      second = std::max(second, at.second_count);
    }
    first_ = mine.allocate<T>(first);
    if (second > 0) second_ = mine.allocate<T>(second);
    const rank_places at = places_of(task, mine.self().value());
    in_ = first_.subspan(at.in, at.in_count);
    out_ = (second > 0 ? second_ : first_).subspan(at.out, at.out_count);
    const auto& counts = task.shape.counts;
    is_even_ = std::ranges::all_of(counts, [&](std::int64_t c) { return c == counts.front(); });
  }

  void load() override {
    mine_.barrier();  // others may still read what is here
    fill(first_.span().template as<std::byte>(), std::byte{0xEE});
    if (second_.size() > 0) fill(second_.span().template as<std::byte>(), std::byte{0xEE});
    write_input(values_, mine_.self().value(), in_.span());
    mine_.barrier();
  }

  void run() override { start(); }

  [[nodiscard]] collective_finding check() const override {
    const device_span<T> got = out_.span();
    return check_outputs<T>(values_, std::span{&got, 1}, mine_.self().value());
  }
  [[nodiscard]] collective_algorithm algorithm() const override { return mine_.last_algorithm(); }

 private:
  void start() {
    collective_options how = options_of(task_);
    const reduction_op op = operation_of(task_.operation);
    if (!is_even_) how.counts = task_.shape.counts;
    switch (task_.shape.what) {
      case collective::all_reduce:
        mine_.all_reduce(in_, out_, op, how);
        return;
      case collective::reduce:
        mine_.reduce(in_, out_, op, how);
        return;
      case collective::reduce_scatter:
        mine_.reduce_scatter(in_, out_, op, how);
        return;
      case collective::all_gather:
        mine_.all_gather(in_, out_, how);
        return;
      case collective::broadcast:
        mine_.broadcast(out_, how);
        return;
      case collective::scatter:
        mine_.scatter(in_, out_, how);
        return;
      case collective::gather:
        mine_.gather(in_, out_, how);
        return;
      case collective::all_to_all:
        mine_.all_to_all(in_, out_, how);
        return;
    }
  }

  rank_communicator& mine_;
  collective_task task_;
  collective_values<T> values_;
  symmetric_buffer<T> first_, second_;
  symmetric_buffer<T> in_, out_;
  bool is_even_ = true;
};

}  // namespace

std::unique_ptr<collective_work> work_of_all(communicator& all, const collective_task& task) {
  return with_type(task.type, [&]<class T>(T) -> std::unique_ptr<collective_work> {
    return std::make_unique<all_ranks<T>>(all, task);
  });
}

std::unique_ptr<collective_work> work_of_one(rank_communicator& mine, const collective_task& task) {
  return with_type(task.type, [&]<class T>(T) -> std::unique_ptr<collective_work> {
    return std::make_unique<one_rank<T>>(mine, task);
  });
}

}  // namespace weft::tool
