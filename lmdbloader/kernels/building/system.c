/* The functions of the operating system that kernels call, under the same names everywhere. A function that a system
   does not have fails, and the kernels continue without it. */
#define _DEFAULT_SOURCE
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#include <io.h>
#include <windows.h>
#define EXPORTED __declspec(dllexport)
#else
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#define EXPORTED __attribute__((visibility("default")))
#endif
#define INSIDE __attribute__((visibility("hidden")))

#ifdef _WIN32

INSIDE int64_t lmdbloader_pread(int fd, void *to, size_t nbytes, int64_t at) {
    OVERLAPPED where = {0};
    DWORD done = 0;
    where.Offset = (DWORD)at;
    where.OffsetHigh = (DWORD)(at >> 32);
    if (nbytes > 1u << 30)
        nbytes = 1u << 30;
    if (!ReadFile((HANDLE)_get_osfhandle(fd), to, (DWORD)nbytes, &done, &where))
        return GetLastError() == ERROR_HANDLE_EOF ? 0 : -1;
    return done;
}

INSIDE int64_t lmdbloader_lseek(int fd, int64_t offset, int whence) {
    return _lseeki64(fd, offset, whence);
}

INSIDE int lmdbloader_madvise(void *at, size_t nbytes, int advice) {
    (void)at, (void)nbytes, (void)advice;
    return -1;
}

INSIDE int lmdbloader_mincore(void *at, size_t nbytes, void *found) {
    (void)at, (void)nbytes, (void)found;
    return -1;
}

/* The clock of Python's time.perf_counter and time.monotonic. */
INSIDE int lmdbloader_clock_gettime(int which, int64_t *words) {
    LARGE_INTEGER ticks, rate;
    (void)which;
    if (!QueryPerformanceCounter(&ticks) || !QueryPerformanceFrequency(&rate))
        return -1;
    words[0] = ticks.QuadPart / rate.QuadPart;
    words[1] = ticks.QuadPart % rate.QuadPart * 1000000000 / rate.QuadPart;
    return 0;
}

#else

INSIDE int64_t lmdbloader_pread(int fd, void *to, size_t nbytes, int64_t at) {
    return pread(fd, to, nbytes, at);
}

INSIDE int64_t lmdbloader_lseek(int fd, int64_t offset, int whence) {
    return lseek(fd, offset, whence);
}

INSIDE int lmdbloader_madvise(void *at, size_t nbytes, int advice) {
    return madvise(at, nbytes, advice);
}

INSIDE int lmdbloader_mincore(void *at, size_t nbytes, void *found) {
    return mincore(at, nbytes, found);
}

INSIDE int lmdbloader_clock_gettime(int which, int64_t *words) {
    struct timespec now;
    (void)which;
    int status = clock_gettime(CLOCK_MONOTONIC, &now);
    words[0] = now.tv_sec;
    words[1] = now.tv_nsec;
    return status;
}

#endif

#if defined(__x86_64__)
#include <cpuid.h>

/* Which registers the system saves: bit 1 SSE, bit 2 AVX, bits 5 to 7 AVX-512. */
__attribute__((target("arch=x86-64"))) static uint32_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* The highest level of x86-64 (1 to 4) that processor and system have, as the psABI of AMD64 defines them. This is the
   one function that any processor can run, whatever the library was made for. */
EXPORTED __attribute__((target("arch=x86-64"))) int lmdbloader_level(void) {
    uint32_t a, b, c, d, b7 = 0, c_extended = 0;
    const uint32_t second = bit_SSE3 | bit_SSSE3 | bit_CMPXCHG16B | bit_SSE4_1 | bit_SSE4_2 | bit_POPCNT;
    const uint32_t third = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
    const uint32_t third_7 = bit_BMI | bit_AVX2 | bit_BMI2;
    const uint32_t fourth_7 = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & second) != second)
        return 1;
    uint32_t c1 = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        b7 = b;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d))
        c_extended = c;
    if ((c1 & third) != third || (b7 & third_7) != third_7 || !(c_extended & bit_LZCNT))
        return 2;
    uint32_t saved = saved_registers();
    if ((saved & 0x06) != 0x06)
        return 2;
    return (b7 & fourth_7) == fourth_7 && (saved & 0xe6) == 0xe6 ? 4 : 3;
}
#else
EXPORTED int lmdbloader_level(void) { return 0; }
#endif
