/* Stands before llamafile_sgemm of llama.cpp's CPU library and sends narrow products of quantised weights past it.
 *
 * That kernel unpacks every weight again for each tile of columns: with the few columns of a decode batch (n is the number of
 * tokens) it takes longer than llama.cpp's own dot products, which it falls back to when this function returns false. The
 * widths below are where the two meet, measured with the Qwen3.5-0.8B geometry on an AVX-512 machine (docs/benchmarks.md).
 * A patched build of llama.cpp would do the same and be ours to keep; this works with the wheel or build that is installed.
 */
#include <stdbool.h>
#include <stdint.h>

enum { Q4_0 = 2, Q5_0 = 6, Q8_0 = 8, IQ4_NL = 20 }; /* ggml.h, enum ggml_type: the quantised types that llamafile_sgemm takes */

typedef bool (*sgemm)(const void *params, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                      void *c, int64_t ldc, int a_type, int b_type, int c_type);

static sgemm original;

/* Called once, before the first product; without an original every product takes the dot products. */
void kvalet_matmul_install(sgemm found) { original = found; }

static int64_t narrowest(int type) {
    switch (type) {
    case Q8_0: return 8;
    case Q4_0:
    case Q5_0:
    case IQ4_NL: return 4;
    default: return 0;
    }
}

bool llamafile_sgemm(const void *params, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                     void *c, int64_t ldc, int a_type, int b_type, int c_type) {
    if (!original || n < narrowest(a_type)) return false;
    return original(params, m, n, k, a, lda, b, ldb, c, ldc, a_type, b_type, c_type);
}
