// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <pthread.h>
#include <sys/resource.h>

namespace samples {

/// How often this thread has given its processor away to wait.
inline long sleeps_of_this_thread() {
  rusage used{};
  ::getrusage(RUSAGE_THREAD, &used);
  return used.ru_nvcsw;
}

/// While it lives the process starts no thread: none has an address space for its stack. A limit of threads or of
/// memory would do the same to a user, but not to a test that runs as root or under a sanitizer.
class no_new_threads {
 public:
  no_new_threads() {
    ::pthread_getattr_default_np(&usual_);
    pthread_attr_t endless;
    ::pthread_getattr_default_np(&endless);
    ::pthread_attr_setstacksize(&endless, std::size_t{1} << 47);
    ::pthread_setattr_default_np(&endless);
    ::pthread_attr_destroy(&endless);
  }
  no_new_threads(const no_new_threads&) = delete;
  no_new_threads& operator=(const no_new_threads&) = delete;
  ~no_new_threads() {
    ::pthread_setattr_default_np(&usual_);
    ::pthread_attr_destroy(&usual_);
  }

 private:
  pthread_attr_t usual_{};
};

}  // namespace samples
