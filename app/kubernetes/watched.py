"""What there is of one kind in the cluster, in memory and up to date."""

from collections.abc import Callable
from typing import Generic

from agents.kubernetes.api import Away, K, KubernetesApi, ListedObjects


class Watched(Generic[K]):
    """Objects by `namespace/name`, or by name where their kind has no namespaces."""

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        kind: type[K],
        on_change: Callable[[], None],
        *,
        labels: str = "",
    ) -> None:
        """`labels`: a selector, so that others' objects do not come here at all."""
        self.is_known = False
        """False: what is missing in `objects` may be there all the same."""
        self.problem = ""
        """Why they may be out of date."""
        self._objects: dict[str, K] = {}
        self._api = api
        self._path = path
        self._kind = kind
        self._on_change = on_change
        self._query = {"labelSelector": labels} if labels else {}

    @property
    def objects(self) -> dict[str, K]:
        """As they are now: a loop over them may wait meanwhile, and more may come."""
        return dict(self._objects)

    async def run(self) -> None:
        """Until cancelled."""
        async for each in self._api.follow(self._path, self._kind, **self._query):
            if isinstance(each, Away):
                self.problem = each.reason
                continue
            self.problem = ""
            if isinstance(each, ListedObjects):
                self._objects = {key_of(one): one for one in each.objects}
                self.is_known = True
            elif each.is_gone:
                self._objects.pop(key_of(each.object), None)
            else:
                self._objects[key_of(each.object)] = each.object
            self._on_change()


def key_of(one: K) -> str:
    """Which object it is among those of its kind."""
    metadata = one.metadata
    return (
        f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
    )
