/* Does for `srun --container-image` what pyxis does, with a folder as the image: what is in it, the
 * programs of this machine, and the folders of --container-mounts are all that a task sees. */
#define _GNU_SOURCE
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis, 1)

static char image[4096], mounts[4096], workdir[4096] = "/";

static int keep(int val, const char *text, int remote)
{
    char *places[] = {image, mounts, workdir};
    snprintf(places[val], 4096, "%s", text);
    return 0;
}

static struct spank_option options[] = {
    {"container-image", "IMAGE", "[pyxis] the image", 1, 0, keep},
    {"container-mounts", "SRC:DST", "[pyxis] bind mounts", 1, 1, keep},
    {"container-workdir", "PATH", "[pyxis] working directory", 1, 2, keep},
    SPANK_OPTIONS_TABLE_END};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
    for (int i = 0; options[i].name; i++)
        spank_option_register(sp, &options[i]);
    return 0;
}

static int show(const char *from, const char *to)
{
    char path[8192], *end;
    snprintf(path, sizeof path, "%s%s", image, to);
    for (end = path + 1; (end = strchr(end, '/')); *end++ = '/') {
        *end = 0;
        mkdir(path, 0755);
    }
    mkdir(path, 0755);
    return mount(from, path, NULL, MS_BIND | MS_REC, NULL);
}

int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
    const char *own[] = {"/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev", "/sys", "/run"};
    char *pair, *to;
    if (!*image)
        return 0;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return -1;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        show(own[i], own[i]);
    for (pair = strtok(mounts, ","); pair; pair = strtok(NULL, ",")) {
        to = strchr(pair, ':');
        *to++ = 0;
        if (show(pair, to)) {
            slurm_error("pyxis: couldn't mount %s", pair);
            return -1;
        }
    }
    if (chroot(image) || chdir(workdir)) {
        slurm_error("pyxis: couldn't start container %s", image);
        return -1;
    }
    return 0;
}
