/* Calls kernels of a library with recorded memory, and writes the memory that they leave.

   call_kernels LIBRARY CALLS RESULT [FILE]

   CALLS begins with six int64: the letters LMDBCALL, the bytes of the memory, and the numbers of addresses, of
   descriptors, and of calls; then 0. It goes on with the positions (int64) of words in the memory that are addresses,
   stored as positions in the memory; the positions of words that become a descriptor of FILE; for each call the
   function's name, 120 bytes filled up with zeros, and the position of its block; and the memory. RESULT is the memory
   after all calls, in which addresses that were left as they were are positions again, and descriptors -1. All is
   little-endian. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#define OPEN(path) _open(path, _O_RDONLY | _O_BINARY)
#else
#include <dlfcn.h>
#include <fcntl.h>
#define OPEN(path) open(path, O_RDONLY)
#endif

enum { MAGIC, NBYTES, NUM_ADDRESSES, NUM_DESCRIPTORS, NUM_CALLS, RESERVED, NUM_HEAD };
enum { ALIGNMENT = 64 };

typedef struct {
    char name[120];
    int64_t block;
} Call;

typedef void (*Function)(int64_t *block);

static void end(const char *what, const char *which) {
    fprintf(stderr, "call_kernels: %s: %s\n", which, what);
    exit(2);
}

static Function find(const char *path, const char *name) {
#ifdef _WIN32
    static HMODULE library = NULL;
    char why[64];
    if (!library && !(library = LoadLibraryA(path))) {
        snprintf(why, sizeof why, "not loaded, error %lu", GetLastError());
        end(why, path);
    }
    Function found = (Function)(void *)GetProcAddress(library, name);
#else
    static void *library = NULL;
    if (!library && !(library = dlopen(path, RTLD_NOW)))
        end(dlerror(), path);
    Function found = (Function)dlsym(library, name);
#endif
    if (!found)
        end("the library has no such function", name);
    return found;
}

static void *read_items(FILE *file, int64_t count, size_t nbytes, const char *path) {
    char *room = malloc(count * nbytes + ALIGNMENT);
    if (!room)
        end("there is not enough memory for it", path);
    room += ALIGNMENT - (uintptr_t)room % ALIGNMENT;
    if (fread(room, nbytes, count, file) != (size_t)count)
        end("it is shorter than its head says", path);
    return room;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc > 5)
        end("expected LIBRARY CALLS RESULT [FILE]", "arguments");
    FILE *file = fopen(argv[2], "rb");
    if (!file)
        end("it cannot be opened", argv[2]);
    int64_t *head = read_items(file, NUM_HEAD, 8, argv[2]);
    if (memcmp(&head[MAGIC], "LMDBCALL", 8))
        end("it holds no calls", argv[2]);
    int64_t *addresses = read_items(file, head[NUM_ADDRESSES], 8, argv[2]);
    int64_t *descriptors = read_items(file, head[NUM_DESCRIPTORS], 8, argv[2]);
    Call *calls = read_items(file, head[NUM_CALLS], sizeof(Call), argv[2]);
    char *memory = read_items(file, head[NBYTES], 1, argv[2]);
    fclose(file);

    int descriptor = argc > 4 ? OPEN(argv[4]) : -1;
    if (argc > 4 && descriptor < 0)
        end("it cannot be opened", argv[4]);
    int64_t *made = malloc(head[NUM_ADDRESSES] * 8 + 1);
    if (!made)
        end("there is not enough memory for it", argv[2]);
    for (int64_t i = 0; i < head[NUM_ADDRESSES]; i++)
        made[i] = *(int64_t *)(memory + addresses[i]) += (intptr_t)memory;
    for (int64_t i = 0; i < head[NUM_DESCRIPTORS]; i++)
        *(int64_t *)(memory + descriptors[i]) = descriptor;
    for (int64_t i = 0; i < head[NUM_CALLS]; i++) {
        puts(calls[i].name); /* the last one printed is the one that did not return */
        fflush(stdout);
        find(argv[1], calls[i].name)((int64_t *)(memory + calls[i].block));
    }
    for (int64_t i = 0; i < head[NUM_ADDRESSES]; i++)
        if (*(int64_t *)(memory + addresses[i]) == made[i])
            *(int64_t *)(memory + addresses[i]) -= (intptr_t)memory;
    for (int64_t i = 0; i < head[NUM_DESCRIPTORS]; i++)
        *(int64_t *)(memory + descriptors[i]) = -1;

    file = fopen(argv[3], "wb");
    if (!file || fwrite(memory, 1, head[NBYTES], file) != (size_t)head[NBYTES] || fclose(file))
        end("it cannot be written", argv[3]);
    return 0;
}
