/* Native kernels of the DP-SGD step: plain C with the vector extensions of GCC and Clang, no headers of Python or torch.
 *
 * The kernels are compiled once for each instruction set below. `alidpfl_instruction_set` tells native.py at run time
 * which one this CPU has. The PyTorch code beside it defines what a kernel computes (conv.py, softmax.py,
 * randomness.py). The tests compare the two.
 */
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "fast math assumes that NaN is impossible: records with a non-finite gradient would stay in the sum"
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* One convolution, activations in NHWC. A row of the per-sample gradient is a kernel position (ky, kx, input channel);
 * rows with inputs side by side in memory form a "run", so that a tile of rows needs one base pointer only. */
typedef struct {
    int64_t batch, records;                           /* of each person, 1 at record level: their gradients are added */
    int64_t sample_size;                              /* floats of one record's input, padding applied */
    int64_t out_height, out_width, channels_out;      /* of the output gradient */
    int64_t runs_y, runs_x, run_length;               /* rows = runs_y * runs_x * run_length */
    int64_t run_step_y, run_step_x;                   /* floats between the inputs of neighbouring runs */
    int64_t step_y, step_x;                           /* floats between the inputs of neighbouring outputs */
} conv_shape;

typedef struct {
    int64_t batch, height, width, channels;
} pool_shape;

typedef struct {
    int64_t batch, records, features, width; /* batch: rows; width: classes; for scores, padded to whole vectors */
} softmax_shape;
typedef struct {
    int64_t batch, records, narrow, wide;
} persons_shape;
#define PARALLEL 1e-9 /* these two as in gradient_forms.py */
#define TINY 1e-300
#define SOFTMAX_FEATURES 1024 /* these two as in native.py */
#define PART 512
#define NONE 255
#define LARGEST_NORM 1e30 /* as in gradient_forms.py */

/* Numbers below 1e-38 count as zero while a kernel runs. Arithmetic on them is a hundred times slower, and a running
 * time that depends on the data reveals something about the data. */
#if defined(__x86_64__)
INLINE unsigned flush_denormals(void) {
    const unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040); /* FTZ: results, DAZ: operands */
    return before;
}
INLINE void restore_denormals(unsigned before) { __builtin_ia32_ldmxcsr(before); }
#else
INLINE unsigned flush_denormals(void) { return 0; }
INLINE void restore_denormals(unsigned before) { (void)before; }
#endif

/* TALL_n: the most rows of a tile of n vectors with sums that fit into registers (32 of them, or 16). */
#if defined(__x86_64__)
#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f")))
#define LANES 16
#define TALL_4 6
#define TALL_2 10
#define TALL_1 10
#include "_native_kernels.h"

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#define TALL_4 3
#define TALL_2 6
#define TALL_1 10
#include "_native_kernels.h"
#endif

#define NAME(x) x##_portable
#define TARGET
#define LANES 4
#define TALL_4 3
#define TALL_2 6
#define TALL_1 10
#include "_native_kernels.h"

/* 2: AVX-512, 1: AVX2 with FMA, 0: the compiler's default. */
int alidpfl_instruction_set(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}
