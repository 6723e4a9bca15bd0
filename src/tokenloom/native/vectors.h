// Eight floats at a time, in the vector extension that GCC and Clang share: they become one AVX register, half of one of
// AVX-512, or two of NEON or SSE.
#pragma once

#include <cstdint>
#include <cstring>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int W = 8;
typedef float vec __attribute__((vector_size(4 * W)));
typedef std::int32_t ivec __attribute__((vector_size(4 * W)));

inline vec load(const float* from) {
    vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

inline void store(float* to, vec v) { std::memcpy(to, &v, sizeof v); }

// x where the mask is zero, 0 where it is all ones.
inline vec dropped(vec x, ivec mask) { return (vec)((ivec)x & ~mask); }

// e^x for x < 88, to 1e-7 relative; 0 below the smallest normal number; not-a-number stays. x = n ln 2 + r, and
// e^r = 1 + r + r² q(r), with q the polynomial of smallest relative error for |r| ≤ ln(2)/2 (own fit).
inline vec exponential(vec x) {
    const float shift = 12582912.0f;  // 1.5 · 2²³: what is added to it is rounded to a whole number.
    vec shifted = x * 1.44269504f + shift;
    vec n = shifted - shift;
    vec r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    vec q = r * 1.3814466e-3f + 8.368781e-3f;
    q = q * r + 4.1668393e-2f;
    q = q * r + 0.1666652f;
    q = q * r + 0.49999994f;
    vec y = q * (r * r) + r + 1.0f;
    vec power = (vec)(((ivec)shifted << 23) + (127 << 23));
    return dropped(y * power, x < -87.0f);
}

inline float sum_of(vec x) {
    float total = 0.0f;
    for (int i = 0; i < W; i++) total += x[i];
    return total;
}

}  // namespace
