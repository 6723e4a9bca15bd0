// Parallel loops on the threads of torch's OpenMP runtime, whose entry point is passed in: a second runtime would create
// a second set of threads on the same cores.
#pragma once

#include <atomic>

#include "vectors.h"

namespace {

typedef void (*Parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
Parallel gomp_parallel = nullptr;

// Call f(0) … f(items − 1), each once, in any order; they must be independent of each other.
template <class F>
void for_each(long items, int threads, const F& f) {
    if (threads <= 1 || items <= 1 || gomp_parallel == nullptr) {
        for (long item = 0; item < items; item++) f(item);
        return;
    }
    struct Job {
        const F* f;
        long items;
        std::atomic<long> next;
    } job{&f, items, {0}};
    auto body = [](void* data) {
        Job& job = *static_cast<Job*>(data);
        for (long item; (item = job.next.fetch_add(1, std::memory_order_relaxed)) < job.items;) (*job.f)(item);
    };
    gomp_parallel(+body, &job, threads < items ? threads : items, 0);
}

}  // namespace

EXPORT void use_threads(void* parallel) { gomp_parallel = reinterpret_cast<Parallel>(parallel); }
