//! Decorator of the blob store for one instance: each request passes the instance's gate.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, path::Path,
};

use super::gate::Gate;

/// Object store whose requests pass the gate before and after.
#[derive(Clone)]
pub struct GatedObjects {
    pub gate: Arc<Gate>,
    pub inner: Arc<dyn ObjectStore>,
}

impl GatedObjects {
    async fn run_gated<T>(&self, request: impl Future<Output = T>) -> T {
        self.gate.pass().await;
        let answer = request.await;
        self.gate.pass().await;
        answer
    }
}

impl fmt::Debug for GatedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for GatedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GatedObjects({})", self.inner)
    }
}

#[async_trait]
impl ObjectStore for GatedObjects {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.run_gated(self.inner.put_opts(location, payload, opts)).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.run_gated(self.inner.put_multipart_opts(location, opts)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.run_gated(self.inner.get_opts(location, options)).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.run_gated(self.inner.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let objects = self.clone();
        let delete = move |location: Result<Path>| {
            let objects = objects.clone();
            async move {
                let location = location?;
                objects.run_gated(objects.inner.delete(&location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.run_gated(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run_gated(self.inner.copy_opts(from, to, options)).await
    }
}
