// SPDX-License-Identifier: Apache-2.0
// A training loop whose loss goes down by the same bits on one, two and four devices, and on four processes of any
// nodes.
//
// The data is in four fixed shards, and each is a rank: where there are fewer devices, a device is several ranks. Each
// rank computes the gradient of its shard, and all_reduce adds the four in the order of ranks, so that their sum
// depends on neither the devices, nor the algorithm, nor the pieces in which memory goes.
//
// usage: gradient_averaging [topology]; or as four processes of torchrun, mpirun or a shell, each with a shard:
//   export WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
//   for r in 1 2 3; do RANK=$r ./gradient_averaging & done; RANK=0 ./gradient_averaging
#include "play.hpp"
#include "ranks.hpp"
#include "weft/collective/communicator.hpp"
#include "weft/core/raise.hpp"
#include "weft/distributed/world.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr int shards = 4;
constexpr std::int64_t samples = 128;            // of a shard
constexpr std::int64_t units = 8;                // of the hidden layer
constexpr std::int64_t weights = 4 * units + 1;  // for x, for y, and added; to the output, and added there
constexpr std::int64_t gradients = weights + 1;  // the loss goes along
constexpr int epochs = 400;

// Sample i through the hidden layer to the chance that it is of the upper moon. `slope` is what the loss (cross
// entropy) changes by with the output.
WEFT_KERNEL(forward,
            (WEFT_IN(float) px, WEFT_IN(float) py, WEFT_IN(float) label, WEFT_IN(float, whole) model,
             WEFT_OUT(float, whole) hidden, WEFT_OUT(float) slope, WEFT_OUT(float) loss, int64_t width),
            {
              float sum = model[4 * width];
              for (int64_t u = 0; u < width; ++u) {
                float in = px[i] * model[u] + py[i] * model[width + u] + model[2 * width + u];
                float out = 2.0f / (1.0f + weft_exp(-2.0f * in)) - 1.0f;
                hidden[i * width + u] = out;
                sum += out * model[3 * width + u];
              }
              float chance = 1.0f / (1.0f + weft_exp(-sum));
              slope[i] = chance - label[i];
              loss[i] = -weft_log(label[i] > 0.5f ? chance : 1.0f - chance);
            });

// Weight i: its gradient, summed over the samples in their order. Behind the last weight: the loss.
WEFT_KERNEL(backward,
            (WEFT_IN(float, whole) px, WEFT_IN(float, whole) py, WEFT_IN(float, whole) model,
             WEFT_IN(float, whole) hidden, WEFT_IN(float, whole) slope, WEFT_IN(float, whole) loss,
             WEFT_OUT(float) gradient, int64_t width, int64_t count),
            {
              int64_t kind = i / width;
              int64_t u = i % width;
              float sum = 0.0f;
              for (int64_t s = 0; s < count; ++s) {
                if (i > 4 * width) {
                  sum += loss[s];
                } else if (i == 4 * width) {
                  sum += slope[s];
                } else if (kind == 3) {
                  sum += slope[s] * hidden[s * width + u];
                } else {
                  float h = hidden[s * width + u];
                  float in = slope[s] * model[3 * width + u] * (1.0f - h * h);
                  sum += in * (kind == 0 ? px[s] : kind == 1 ? py[s] : 1.0f);
                }
              }
              gradient[i] = sum;
            });

WEFT_KERNEL(step, (WEFT_INOUT(float) model, WEFT_IN(float) gradient, float rate), { model[i] -= rate * gradient[i]; });

/// Two half circles that reach into each other, a little rough. Shard k has every fourth point.
struct shard_data {
  std::vector<float> px, py, label;
};
shard_data shard_of(int k) {
  shard_data made;
  for (std::int64_t s = 0; s < samples; ++s) {
    const std::int64_t n = s * shards + k;
    const bool upper = n / shards % 2 == 0;
    const double turn = 3.14159265358979 * static_cast<double>(n * 37 % 512) / 512;
    const double rough = 0.08 * (static_cast<double>(n * 7'919 % 1'000) / 500 - 1);
    made.px.push_back(static_cast<float>(upper ? std::cos(turn) : 1 - std::cos(turn)));
    made.py.push_back(static_cast<float>((upper ? std::sin(turn) : 0.5 - std::sin(turn)) + rough));
    made.label.push_back(upper ? 1.0F : 0.0F);
  }
  return made;
}

/// What a rank has on its device.
struct worker {
  worker(const weft::device& on, const shard_data& data)
      : px(on, samples),
        py(on, samples),
        label(on, samples),
        model(on, weights),
        hidden(on, samples * units),
        slope(on, samples),
        loss(on, samples),
        gradient(on, gradients) {
    std::vector<float> first(weights);
    for (std::size_t w = 0; w < first.size(); ++w) first[w] = static_cast<float>(w * 29 % 17) / 8 - 1;
    copy(model, first);
    copy(px, data.px);
    copy(py, data.py);
    copy(label, data.label);
  }

  void find_gradient(const weft::stream& order) {
    weft::launch<forward>(order, weft::range(samples), px, py, label, model, hidden, slope, loss, units);
    weft::launch<backward>(order, weft::range(gradients), px, py, model, hidden, slope, loss, gradient, units, samples);
  }
  void take_step(const weft::stream& order, float rate) {
    weft::launch<step>(order, weft::range(weights), model, gradient.span().first(weights), rate);
  }

  weft::buffer<float> px, py, label, model, hidden, slope, loss, gradient;
};

struct training {
  std::vector<float> losses;               // of each epoch, over all samples
  std::vector<std::vector<float>> models;  // that each rank ends with
};

training train(const weft::machine& m, int devices) {
  std::vector<weft::device> ranks;
  std::vector<worker> workers;
  std::vector<weft::stream> streams;
  std::vector<weft::device_span<float>> sums;
  for (int k = 0; k < shards; ++k) {
    ranks.push_back(m[k * devices / shards]);
    streams.emplace_back(ranks.back());
    sums.push_back(workers.emplace_back(ranks.back(), shard_of(k)).gradient.span());
  }
  weft::communicator all{ranks};
  weft::collective_options in_order;
  in_order.order = weft::reduction_order::rank;
  in_order.streams = streams;

  training done;
  std::vector<float> seen(gradients);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (std::size_t k = 0; k < shards; ++k) workers[k].find_gradient(streams[k]);
    all.all_reduce(sums, weft::reduce_op::sum, in_order);  // begins and ends in the streams' order: nobody waits
    for (std::size_t k = 0; k < shards; ++k) workers[k].take_step(streams[k], 2.0F / (shards * samples));
    copy(streams.front(), seen, sums.front()).wait();
    done.losses.push_back(seen.back() / (shards * samples));
  }
  for (std::size_t k = 0; k < shards; ++k) {
    done.models.emplace_back(weights);
    copy(streams[k], done.models.back(), workers[k].model).wait();
  }
  return done;
}

/// The same by one process for each shard.
training train_among(weft::world& everyone, const weft::machine& m) {
  const int self = everyone.self().value();
  const weft::device mine = m[everyone.member(everyone.self()).local.value() % m.device_count()];
  worker w{mine, shard_of(self)};
  const weft::stream order{mine};
  weft::rank_communicator all = everyone.communicator(mine);
  weft::collective_options in_order;
  in_order.order = weft::reduction_order::rank;
  in_order.streams = {&order, 1};

  training done;
  std::vector<float> seen(gradients);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    w.find_gradient(order);
    all.all_reduce(w.gradient, weft::reduce_op::sum, in_order);
    w.take_step(order, 2.0F / (shards * samples));
    copy(order, seen, w.gradient).wait();
    done.losses.push_back(seen.back() / (shards * samples));
  }
  std::vector<float> models(weights * shards);
  all.all_gather(w.model, models);
  for (auto at = models.begin(); at != models.end(); at += weights) done.models.emplace_back(at, at + weights);
  return done;
}

/// As a rank of a world: 0 when its result is that of one device.
int run_among(const weft::world_place& place, const weft::machine& m) {
  if (place.size != shards) {
    std::fprintf(stderr, "gradient_averaging: %d ranks, not %d, one for each shard\n", place.size, shards);
    return 2;
  }
  weft::world everyone = weft::value_or_raise(weft::world::join(place));
  const training one = train(m, 1), together = train_among(everyone, m);
  bool same = together.losses == one.losses;
  for (const std::vector<float>& model : together.models) same = same && model == one.models.front();
  if (everyone.self() == weft::rank{0}) {
    std::printf("loss %.6f, then %.6f\n%d ranks on %d node%s, by %s: %s\n",
                static_cast<double>(together.losses.front()), static_cast<double>(together.losses.back()), shards,
                everyone.nodes(), everyone.nodes() == 1 ? "" : "s",
                everyone.nodes() == 1 ? "shared memory" : everyone.engine().c_str(),
                same ? "every loss and every weight on every rank is the same as on one device" : "ANOTHER RESULT");
  }
  return same ? 0 : 1;
}

int show(int argc, char** argv) {
  const weft::machine m = examples::play(argc, argv, "two_socket_8");
  if (const auto place = examples::place_in_a_world()) return run_among(*place, m);
  if (m.device_count() < shards) {
    std::fprintf(stderr, "usage: gradient_averaging [topology of at least %d devices]\n", shards);
    return 2;
  }
  const training one = train(m, 1);
  std::printf("epoch   loss\n");
  for (int epoch = 0; epoch < epochs; ++epoch) {
    if (epoch % 40 == 0 || epoch == epochs - 1)
      std::printf("%5d   %.6f\n", epoch, static_cast<double>(one.losses[static_cast<std::size_t>(epoch)]));
  }
  bool right = one.losses.back() < one.losses.front() / 4;
  bool alike = true;  // exponentials of one backend are not those of another in their last bits
  for (const weft::device& d : m.devices()) alike = alike && d.kind() == m[0].kind();
  for (const int devices : {1, 2, 4}) {
    const training again = train(m, devices);
    bool agreed = true;
    for (const std::vector<float>& model : again.models) agreed = agreed && model == again.models.front();
    // finite numbers: equal is equal in every bit
    const bool same = agreed && again.losses == one.losses && again.models.front() == one.models.front();
    const bool near = !alike && agreed && std::abs(again.losses.back() - one.losses.back()) < 0.01F;
    std::printf("%d device%s: %s\n", devices, devices == 1 ? "" : "s",
                same   ? "every loss and every weight on every rank is the same"
                : near ? "every weight is the same on every rank, and near that of one device, of another backend"
                       : "ANOTHER RESULT");
    right = right && (same || near);
  }
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::run([&] { return show(argc, argv); });
}
