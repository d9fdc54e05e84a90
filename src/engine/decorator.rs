//! [`EngineDecorator`]: an engine in front of another engine.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    Cursor, EngineError, Incarnation, Index, KeyPage, RecordEngine, RoomShortage, Row, RowResult, ScanPage, ScanPart,
    Set, keys_of, select,
};
use crate::record::{Key, Record, SelectedPage, Selection};

/// Engine that changes some calls of another engine. Every call that an implementation does not override is forwarded.
///
/// Callers use [`RecordEngine`], which every decorator implements.
pub trait EngineDecorator: Send + Sync + 'static {
    /// Returns the engine that gets the forwarded calls.
    fn inner(&self) -> &dyn RecordEngine;

    /// Forwards the call to [`RecordEngine::name`].
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    /// Forwards the call to [`RecordEngine::apply`].
    fn apply(&self, rows: &[Row]) -> impl Future<Output = Vec<RowResult>> + Send {
        async move { self.inner().apply(rows).await }
    }

    /// Forwards the call to [`RecordEngine::read`].
    fn read(&self, keys: &[Key]) -> impl Future<Output = Vec<Result<Option<Record>, EngineError>>> + Send {
        async move { self.inner().read(keys).await }
    }

    /// Selects from the records of [`read`](Self::read), so that a decorator of reads also changes selected reads.
    fn read_selected(
        &self,
        pages: &[(Key, Selection)],
    ) -> impl Future<Output = Vec<Result<Option<SelectedPage>, EngineError>>> + Send {
        async move { select(self.read(&keys_of(pages)).await, pages) }
    }

    /// Forwards the call to [`RecordEngine::query`].
    fn query(
        &self,
        index: Index,
        from: u64,
        to: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Key>, EngineError>> + Send {
        async move { self.inner().query(index, from, to, limit).await }
    }

    /// Forwards the call to [`RecordEngine::query_part`].
    fn query_part(
        &self,
        index: Index,
        range: (u64, u64),
        cursor: Option<Cursor>,
    ) -> impl Future<Output = Result<KeyPage, EngineError>> + Send {
        async move { self.inner().query_part(index, range, cursor).await }
    }

    /// Forwards the call to [`RecordEngine::scan`].
    fn scan(
        &self,
        set: Set,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> impl Future<Output = Result<ScanPage, EngineError>> + Send {
        async move { self.inner().scan(set, cursor, limit).await }
    }

    /// Forwards the call to [`RecordEngine::scan_part`].
    fn scan_part(
        &self,
        part: ScanPart,
        cursor: Option<Cursor>,
        limit: usize,
    ) -> impl Future<Output = Result<ScanPage, EngineError>> + Send {
        async move { self.inner().scan_part(part, cursor, limit).await }
    }

    /// Forwards the call to [`RecordEngine::loss_window`].
    fn loss_window(&self) -> Duration {
        self.inner().loss_window()
    }

    /// Forwards the call to [`RecordEngine::incarnation`].
    fn incarnation(&self) -> impl Future<Output = Result<Incarnation, EngineError>> + Send {
        async move { self.inner().incarnation().await }
    }

    /// Forwards the call to [`RecordEngine::check_flushing`].
    fn check_flushing(&self) -> impl Future<Output = Result<(), EngineError>> + Send {
        async move { self.inner().check_flushing().await }
    }

    /// Forwards the call to [`RecordEngine::close`].
    fn close(&self) -> impl Future<Output = Result<(), EngineError>> + Send {
        async move { self.inner().close().await }
    }
}

#[async_trait]
impl<D: EngineDecorator> RecordEngine for D {
    fn name(&self) -> &'static str {
        EngineDecorator::name(self)
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        EngineDecorator::apply(self, rows).await
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        EngineDecorator::read(self, keys).await
    }

    async fn read_selected(&self, pages: &[(Key, Selection)]) -> Vec<Result<Option<SelectedPage>, EngineError>> {
        EngineDecorator::read_selected(self, pages).await
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        EngineDecorator::query(self, index, from, to, limit).await
    }

    async fn query_part(
        &self,
        index: Index,
        range: (u64, u64),
        cursor: Option<Cursor>,
    ) -> Result<KeyPage, EngineError> {
        EngineDecorator::query_part(self, index, range, cursor).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        EngineDecorator::scan(self, set, cursor, limit).await
    }

    fn loss_window(&self) -> Duration {
        EngineDecorator::loss_window(self)
    }

    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        EngineDecorator::scan_part(self, part, cursor, limit).await
    }

    fn layout_name(&self) -> Option<&'static str> {
        self.inner().layout_name()
    }

    async fn is_empty(&self, set: Set) -> Result<bool, EngineError> {
        self.inner().is_empty(set).await
    }

    fn may_lose_parts(&self) -> bool {
        self.inner().may_lose_parts()
    }

    fn is_exclusive(&self) -> bool {
        self.inner().is_exclusive()
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        EngineDecorator::incarnation(self).await
    }

    async fn check_flushing(&self) -> Result<(), EngineError> {
        EngineDecorator::check_flushing(self).await
    }

    async fn shortages(&self) -> Result<Vec<RoomShortage>, EngineError> {
        self.inner().shortages().await
    }

    async fn close(&self) -> Result<(), EngineError> {
        EngineDecorator::close(self).await
    }
}
