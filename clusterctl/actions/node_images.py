"""Which image each kind of node gets: asked of the registries before anything is paid for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterctl import catalog, recipes, registry
from clusterctl.errors import UsageError
from clusterctl.model import ClusterSpec


@dataclass(frozen=True, slots=True)
class NodeImage:
    """`reference` is what the node's engine runs. With a `recipe`, the node builds it, on `bases`;
    else it is pulled, with `login` where the registry asks for one."""

    reference: str
    line: str
    """For people: where it comes from, and how big that is."""
    recipe: str = ""
    bases: tuple[str, ...] = ()
    login: registry.RegistryLogin | None = field(default=None, repr=False)
    size: int = 0
    """Bytes that the node downloads of it, or of its bases."""


def parse_images(texts: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What --image says: the image of all nodes, and those of some kinds of nodes. The name of a
    recipe alone is for the nodes that it was made for."""
    everywhere, by_kind = "", dict[str, str]()
    for text in texts:
        kind, equals, image = text.partition("=")
        if not equals:
            image = text
            kind = catalog.COMPILED_FOR.get(text, text) if text in catalog.RECIPES else ""
        elif kind not in catalog.CONTAINER_IMAGES:
            raise UsageError(
                f"--image {text!r}: no kind of node is called {kind!r}",
                hint=f"the kinds are {', '.join(catalog.CONTAINER_IMAGES)}",
            )
        if image not in catalog.RECIPES:
            registry.parse(image)
        if kind in by_kind or (everywhere and not kind):
            raise UsageError(
                f"--image names two images for {_name_nodes(kind) if kind else 'all nodes'}",
                hint="leave one of the two out",
            )
        if kind:
            by_kind[kind] = image
        else:
            everywhere = image
    return everywhere, by_kind


def resolve(
    spec: ClusterSpec,
    kinds: Sequence[str],
    known: Mapping[str, str],
    more_logins: registry.MoreLogins,
) -> dict[str, NodeImage]:
    """The images of these kinds of nodes. `known` are those that the cluster has, by digest: its
    new nodes get the same, whatever a tag means by now.

    Raises UsageError or ProviderError for what is no image, or none that we may see.
    """
    answers: dict[str, registry.FoundImage] = {}

    def ask(text: str) -> registry.FoundImage:
        if text not in answers:
            answers[text] = registry.resolve(text, more_logins)
        return answers[text]

    found = {}
    for kind, chosen in catalog.choose_images(kinds, spec.image, spec.images).items():
        if chosen in catalog.RECIPES:
            found[kind] = _resolve_recipe(kind, chosen, ask)
        else:
            found[kind] = _choose_pulled(kind, chosen, known.get(kind, chosen), ask)
    return found


def _resolve_recipe(kind: str, recipe: str, ask: Callable[[str], registry.FoundImage]) -> NodeImage:
    listed = recipes.read_downloads()
    recipes.check_complete(recipe, listed)
    bases = recipes.list_bases(recipe, listed)
    found = [ask(base) for base in bases]
    on = ", ".join(
        f"{registry.parse(base).tagged} {_describe(answer)}"
        for base, answer in zip(bases, found, strict=True)
    )
    return NodeImage(
        reference=recipes.make_tag(recipe, listed),
        line=f"image of {_name_nodes(kind)}: built there from the recipe {recipe!r}, on {on}"
        + "; experimental: never built, and never run on a GPU" * (recipe in catalog.COMPILED_FOR),
        recipe=recipe,
        bases=bases,
        size=sum(answer.size for answer in found),
    )


def _choose_pulled(
    kind: str, chosen: str, wanted: str, ask: Callable[[str], registry.FoundImage]
) -> NodeImage:
    found = ask(wanted)
    name = registry.parse(chosen).tagged
    line = f"image of {_name_nodes(kind)}: {name} {_describe(found)}"
    return NodeImage(found.pinned, line, login=found.login, size=found.size)


def _name_nodes(kind: str) -> str:
    return "the launcher" if kind == "launcher" else f"{kind} workers"


def _describe(found: registry.FoundImage) -> str:
    return f"({found.digest[:19]}, {found.size / 1e6:,.0f} MB)"
