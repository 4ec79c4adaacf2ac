"""Verbs about data sets and node images: each has two words."""

from __future__ import annotations

from clusterctl.options import limits as where
from clusterctl.options.checks import sha256_hex
from clusterctl.options.shared import OPTIONS
from clusterctl.options.table import (
    ARGUMENTS,
    GENERAL,
    Common,
    cluster_option,
    flag,
    maybe,
    text,
    texts,
)

DATA = "Data sets and images"
_RECIPES = "launcher, cpu, nvidia, nvidia-mpi or amd"


class DataGet(Common, heading=DATA, module="data"):
    """Download data sets and copy them to $CLUSTERCTL_DATA on every worker.

    A URL (https://, s3:// or hf://) is downloaded by one worker, which passes it on to the others.
    A download that broke off is resumed, and its checksum is verified. Tokens: HF_TOKEN, or
    CLUSTERCTL_HTTPS_TOKEN for https://.
    """

    examples = (
        "clusterctl data get mnist",
        "clusterctl data get cifar10 --no-push",
        "clusterctl data get hf://datasets/stanfordnlp/imdb",
        "clusterctl data get s3://my-bucket/train --name images",
    )
    names = texts("", ARGUMENTS, "mnist, cifar10, imagenette, or a URL", "NAME|URL...")
    name = text("--name", OPTIONS, "Name of the folder on the workers", "NAME", limits=where.URL)
    sha256 = text(
        "--sha256", OPTIONS, "Checksum of the file", "HEX", limits=where.URL, check=sha256_hex
    )
    mirror = text(
        "--mirror", OPTIONS, "URL of a folder with the files", "URL", env="CLUSTERCTL_MIRROR"
    )
    no_push = flag("--no-push", OPTIONS, "Do not copy to the workers")
    cluster = cluster_option(where.PUSHED)


class DataPush(Common, heading=DATA, module="data"):
    """Copy data sets to $CLUSTERCTL_DATA on every worker."""

    examples = ("clusterctl data push mnist", "clusterctl data push ./images --name images")
    names = texts("", ARGUMENTS, "Data set, or a folder", "NAME...")
    name = maybe("--name", OPTIONS, "Name of the folder on the workers", "NAME")


class DataList(Common, heading=DATA, module="data"):
    """List the data sets, and which of them are on this machine."""

    examples = ("clusterctl data list",)
    cluster = cluster_option(where.ONLY_LOCAL_DATA)


class DataIndex(Common, heading=DATA, module="data"):
    """Write a YAML index of image folders."""

    passes_options = True
    examples = ("clusterctl data index train val",)
    words = texts("", ARGUMENTS, "Folders and options of the program", "TRAIN VALIDATION...")
    json = flag("--json", GENERAL, limits=where.NO_JSON)
    cluster = cluster_option(where.ONLY_LOCAL_DATA)


class ImageBuild(Common, heading=DATA, module="images"):
    """Build a node image from its recipe with this machine's Docker."""

    examples = ("clusterctl image build cpu", "clusterctl image build nvidia --push ghcr.io/me")
    name = text("", ARGUMENTS, _RECIPES, "NAME")
    push = text("--push", OPTIONS, "Push the image there, as REPO/NAME", "REPO")
    base = text("--base", OPTIONS, "Build on this Debian image", "IMAGE")
    cluster = cluster_option(where.BUILT_HERE)


class ImageLock(Common, heading=DATA, module="images"):
    """Add missing checksums to docker/downloads.json: download the files and hash them."""

    examples = ("clusterctl image lock nvidia",)
    name = text("", ARGUMENTS, _RECIPES, "NAME")
    cluster = cluster_option(where.BUILT_HERE)
