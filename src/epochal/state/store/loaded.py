"""Keeps the providers of one process: loads each once, maintains it, and unloads it when needed.

One thread maintains all providers, one after the other, so at most one store at a time is written
in the background. When another process claims a store, its provider here is maintained a last time
and closed, on the same thread. A provider whose maintenance fails is closed, and only that one. Its
files are intact, so the next task that needs the store loads it from them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from epochal.errors import RpcError
from epochal.state.store.conf import StateStoreProviderId
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.store_coordinator import StateStoreCoordinatorRef, WorkerLocation

logger = logging.getLogger(__name__)


class LoadedProviders:
    """Loads providers on demand and maintains them every `interval_seconds`."""

    def __init__(
        self,
        here: WorkerLocation,
        coordinator: StateStoreCoordinatorRef | None = None,
        *,
        interval_seconds: float = 60.0,
    ) -> None:
        self._here, self._coordinator = here, coordinator
        self._interval_seconds = interval_seconds
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._maintaining = threading.Lock()
        self._loaded: dict[StateStoreProviderId, StateStoreProvider] = {}
        self._retired: list[StateStoreProvider] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def get(
        self, provider_id: StateStoreProviderId, load: Callable[[], StateStoreProvider]
    ) -> tuple[StateStoreProvider, bool]:
        """The provider of this store, and whether its next commit should also write a snapshot.

        Claims the store for this process, and unloads stores that other processes have claimed.
        """
        # `maintain` holds the same lock while it asks the coordinator and unloads. Without it, a
        # store could be claimed here between that question and the unloading.
        with self._claiming:
            with self._lock:
                if self._thread is None and not self._stopping:
                    self._thread = threading.Thread(
                        target=self._run, name="epochal-state-maintenance", daemon=True
                    )
                    self._thread.start()
                provider = self._loaded.get(provider_id) or load()
                self._loaded[provider_id] = provider
                others = tuple(other for other in self._loaded if other != provider_id)
            if self._coordinator is None:
                return provider, False
            here = self._here
            reported = self._coordinator.report_active_instance(
                provider_id, here.host, here.executor_id, here.worker, others
            )
            if not reported.continued:
                # Another process held the store in between and may have written other versions.
                provider.forget_cache()
            for other in reported.unload:
                self._retire(other)
            return provider, reported.force_snapshot

    def is_loaded(self, provider_id: StateStoreProviderId) -> bool:
        """Whether this process has a provider of the store."""
        with self._lock:
            return provider_id in self._loaded

    def unload(self, provider_id: StateStoreProviderId) -> None:
        """Maintain a provider a last time and close it."""
        self._retire(provider_id)
        self._close_retired()

    def maintain(self) -> None:
        """Go once over all providers: close those no longer active, maintain the others."""
        self._close_retired()
        with self._lock:
            loaded = list(self._loaded.items())
        for provider_id, provider in loaded:
            with self._claiming:
                if not self._is_active(provider_id):
                    self._retire(provider_id)
                    continue
            if not self._maintain(provider):
                self._retire(provider_id, maintain=False)
        self._close_retired()

    def stop(self) -> None:
        """End the maintenance thread, then maintain and close every provider."""
        with self._lock:
            self._stopping = True
            thread, self._thread = self._thread, None
        self._wake.set()
        if thread is not None:
            thread.join()
        with self._lock:
            provider_ids = list(self._loaded)
        for provider_id in provider_ids:
            self._retire(provider_id)
        self._close_retired()

    def _run(self) -> None:
        while not self._stopping:
            woken = self._wake.wait(self._interval_seconds)
            self._wake.clear()
            if self._stopping:
                return
            if woken:
                self._close_retired()
            else:
                self.maintain()

    def _is_active(self, provider_id: StateStoreProviderId) -> bool:
        if self._coordinator is None:
            return True
        try:
            return self._coordinator.verify_if_instance_active(
                provider_id, self._here.executor_id, self._here.worker
            )
        except RpcError as error:
            logger.warning("cannot ask whether %s is still active: %s", provider_id, error)
            return True

    def _maintain(self, provider: StateStoreProvider) -> bool:
        with self._maintaining:
            try:
                provider.do_maintenance()
            except Exception:
                logger.exception("maintenance of %s failed, unloading it", provider)
                return False
            return True

    def _retire(self, provider_id: StateStoreProviderId, *, maintain: bool = True) -> None:
        with self._lock:
            provider = self._loaded.pop(provider_id, None)
            if provider is not None and maintain:
                self._retired.append(provider)
                self._wake.set()
        if provider is not None and not maintain:
            provider.close()

    def _close_retired(self) -> None:
        while True:
            with self._lock:
                if not self._retired:
                    return
                provider = self._retired.pop(0)
            self._maintain(provider)
            provider.close()
            logger.info("unloaded %s", provider)
