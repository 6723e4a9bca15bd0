// gelu(z + b) and its derivative in one pass; the backward pass in another.

#include "activations.h"
#include "threads.h"

namespace {

constexpr long ROWS = 128;  // per task: fixed, so that sums do not depend on the number of threads

// The last, incomplete vector of a row.
inline vec part(const float* from, long n) {
    vec v = {};
    std::memcpy(&v, from, sizeof(float) * n);
    return v;
}

}  // namespace

// z (rows, width) becomes the derivative; y is the result. bias (width) may be missing.
EXPORT void gelu_forward(float* z, const float* bias, float* y, long rows, long width, int threads) {
    for_each((rows + ROWS - 1) / ROWS, threads, [=](long piece) {
        long last = piece * ROWS + ROWS < rows ? piece * ROWS + ROWS : rows;
        for (long row = piece * ROWS; row < last; row++) {
            float *zs = z + row * width, *ys = y + row * width;
            long i = 0;
            vec value, derivative;
            for (; i + W <= width; i += W) {
                vec x = load(zs + i);
                if (bias) x += load(bias + i);
                gelu(x, value, derivative);
                store(ys + i, value);
                store(zs + i, derivative);
            }
            if (long n = width - i) {
                vec x = part(zs + i, n);
                if (bias) x += part(bias + i, n);
                gelu(x, value, derivative);
                std::memcpy(ys + i, &value, sizeof(float) * n);
                std::memcpy(zs + i, &derivative, sizeof(float) * n);
            }
        }
    });
}

// dz = dy ⊙ derivative; sums (pieces, width): sums of dz over the rows of each piece, of `gelu_rows()` rows.
EXPORT void gelu_backward(const float* dy, const float* derivative, float* dz, float* sums, long rows, long width,
                          int threads) {
    for_each((rows + ROWS - 1) / ROWS, threads, [=](long piece) {
        long last = piece * ROWS + ROWS < rows ? piece * ROWS + ROWS : rows;
        float* sum = sums + piece * width;
        std::memset(sum, 0, sizeof(float) * width);
        for (long row = piece * ROWS; row < last; row++) {
            const float *gs = dy + row * width, *ds = derivative + row * width;
            float* to = dz + row * width;
            for (long i = 0; i < width; i++) {
                float g = gs[i] * ds[i];
                to[i] = g;
                sum[i] += g;
            }
        }
    });
}

EXPORT long gelu_rows() { return ROWS; }
