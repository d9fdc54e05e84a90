//! Second chances: a `Reconsider` for each conflicting transaction whose bar may have ended.

use std::{collections::BTreeSet, ops::RangeInclusive, sync::Arc};

use crate::{
    event::{Command, CommandAction, Event},
    record::{Page, Reason, Slot, TxState, Verdict},
    sequencer::{
        SequencerError,
        bodies::read_inputs,
        context::{BODIES_AT_ONCE, HandlerContext, distinct},
        descendants::Descendants,
        pages::read_slots,
    },
    tx::{Outpoint, Txid},
};

/// Publishes `Reconsider` for the conflicting transactions that name a settled slot without a holder, or an output
/// of an accepted transaction. A `Reconsider` that fails triggers nothing, so that the chances end.
pub async fn publish_second_chances(
    cx: &HandlerContext<'_>,
    settled: &BTreeSet<Outpoint>,
    accepted: &[Txid],
    descendants: &Descendants,
) -> Result<(), SequencerError> {
    if cx.has_chances_in_log() || (settled.is_empty() && accepted.is_empty()) {
        return Ok(());
    }
    let parents = distinct(settled.iter().map(|outpoint| outpoint.txid).chain(accepted.iter().copied()));
    let mut chances = BTreeSet::new();
    for parents in parents.chunks(BODIES_AT_ONCE) {
        let parents = cx.read_existing_masters(parents).await?;
        let slots = parents.iter().flat_map(|parent| settled.range(output_range(parent.txid))).copied();
        let slots = read_slots(cx, &parents, slots).await?;
        for parent in parents {
            let own = slots.range(output_range(parent.txid));
            let freed: BTreeSet<Outpoint> =
                own.filter(|(_, slot)| is_free(&parent, slot)).map(|(outpoint, _)| *outpoint).collect();
            // A loser against a live rival has freed no slot: a parent with many outputs may have as many
            // conflicting children.
            if freed.is_empty() && !accepted.contains(&parent.txid) {
                continue;
            }
            let mut children = list_conflicting_children(&parent);
            children.retain(|child| !descendants.contains(child));
            let freed = &freed;
            let deserves = |child: Arc<Page>| async move { deserves_second_chance(cx, &child, freed, accepted).await };
            chances.extend(filter_deserving(cx, &children, deserves).await?);
        }
    }
    publish_reconsider(cx, &chances.into_iter().collect::<Vec<_>>()).await
}

/// Publishes second chances for the children of `parents` after a bar was lifted: a lock by a command or by a block
/// that lists the parent, a freeze of `output`, or the immaturity of a coinbase that counts by an earlier block again.
///
/// A verdict names only the first bar of its transaction, and a chance that fails changes no verdict. So the chance
/// is given to each child that its named bar does not bar any more: the lifted bar may have been the last. The end
/// of its named bar gives the chance to every other child.
pub async fn publish_chances_after_lifting(
    cx: &HandlerContext<'_>,
    parents: &[Txid],
    output: Option<Outpoint>,
) -> Result<(), SequencerError> {
    if cx.has_chances_in_log() || parents.is_empty() {
        return Ok(());
    }
    let deserves = |child: Arc<Page>| async move {
        let spends_output = match output {
            Some(output) => read_inputs(cx, &child).await?.iter().any(|(outpoint, _)| *outpoint == output),
            None => true,
        };
        Ok(spends_output && !is_barred_by_verdict(cx, &child).await?)
    };
    let mut chances = BTreeSet::new();
    for parent in cx.read_existing_masters(parents).await? {
        chances.extend(filter_deserving(cx, &list_conflicting_children(&parent), deserves).await?);
    }
    publish_reconsider(cx, &chances.into_iter().collect::<Vec<_>>()).await
}

/// Publishes a `Reconsider` for a child whose missing parent became live between the decision and its application:
/// no verdict on that parent would give the chance. A parent that comes after its child's slots were settled finds
/// a stub and is contested, and its verdict gives the chance.
pub async fn reconsider_if_parent_is_live(
    cx: &HandlerContext<'_>,
    child: Txid,
    parent: Txid,
) -> Result<(), SequencerError> {
    if cx.has_chances_in_log() {
        return Ok(());
    }
    let appeared = cx.master(parent).await?.is_some_and(|parent| parent.state() == TxState::Live);
    if appeared { publish_reconsider(cx, &[child]).await } else { Ok(()) }
}

/// Publishes a `Reconsider` for a conflicting transaction whose contest was passed over, unless the reason of its
/// verdict still bars it.
///
/// A transaction can become conflicting before its event has stored a body. Then no parent lists it in `conflictingCs`,
/// and the parent may have become live again before the contest is handled. From this point on the parents list it.
pub async fn reconsider_unless_barred(cx: &HandlerContext<'_>, txid: Txid) -> Result<(), SequencerError> {
    if cx.has_chances_in_log() {
        return Ok(());
    }
    let Some(page) = cx.master(txid).await? else { return Ok(()) };
    if is_barred_by_verdict(cx, &page).await? {
        return Ok(());
    }
    publish_reconsider(cx, &[txid]).await
}

/// Publishes a `Reconsider` for each of these transactions.
pub async fn publish_reconsider(cx: &HandlerContext<'_>, txids: &[Txid]) -> Result<(), SequencerError> {
    let events = txids.iter().map(|txid| {
        let id = second_chance_id(cx.offset, txid);
        (*txid, Event::Command(Command { id, action: CommandAction::Reconsider { txid: *txid } }))
    });
    cx.produce(&cx.parts.topics.chain, Some(0), events).await
}

/// Returns the id of the `Reconsider` that the event at this chain offset publishes for a transaction.
fn second_chance_id(offset: u64, txid: &Txid) -> [u8; 16] {
    let mut cause = blake3::Hasher::new();
    cause.update(&offset.to_le_bytes()).update(&txid.0);
    let mut id = [0; 16];
    id[..8].copy_from_slice(&offset.to_le_bytes());
    id[8..].copy_from_slice(&cause.finalize().as_bytes()[..8]);
    id
}

/// Returns whether a `Reconsider` with this id is a second chance that the sequencer has published. Any other one is a
/// client's.
pub fn is_second_chance(id: &[u8; 16], txid: &Txid) -> bool {
    let (offset, _) = id.split_first_chunk().unwrap_or_else(|| unreachable!("16 bytes begin with 8"));
    second_chance_id(u64::from_le_bytes(*offset), txid) == *id
}

/// Returns the transactions whose bodies satisfy `deserves`.
async fn filter_deserving<F>(
    cx: &HandlerContext<'_>,
    txids: &[Txid],
    deserves: impl Fn(Arc<Page>) -> F,
) -> Result<Vec<Txid>, SequencerError>
where
    F: Future<Output = Result<bool, SequencerError>>,
{
    let mut found = Vec::new();
    for chunk in txids.chunks(BODIES_AT_ONCE) {
        for page in cx.read_existing_masters(chunk).await? {
            if deserves(page.clone()).await? {
                found.push(page.txid);
            }
        }
    }
    Ok(found)
}

/// Returns whether a child that is not refused for good spends one of these outputs, or an output of an accepted
/// transaction.
async fn deserves_second_chance(
    cx: &HandlerContext<'_>,
    child: &Page,
    freed: &BTreeSet<Outpoint>,
    accepted: &[Txid],
) -> Result<bool, SequencerError> {
    let refused_for_good = match child.state() {
        TxState::Conflicting(Verdict::Conflicting(reason)) => reason.is_permanent(),
        _ => true,
    };
    let is_freed = |outpoint: &Outpoint| freed.contains(outpoint) || accepted.contains(&outpoint.txid);
    Ok(!refused_for_good && read_inputs(cx, child).await?.iter().any(|(outpoint, _)| is_freed(outpoint)))
}

/// Returns whether the reason in the verdict on a transaction still bars it, or bars it for good.
async fn is_barred_by_verdict(cx: &HandlerContext<'_>, child: &Page) -> Result<bool, SequencerError> {
    let TxState::Conflicting(Verdict::Conflicting(reason)) = child.state() else { return Ok(true) };
    match reason {
        Reason::Locked { parent } | Reason::MissingParent { parent } | Reason::ConflictingParent { parent } => {
            let parent = cx.master(parent).await?;
            Ok(parent.is_none_or(|parent| parent.state() != TxState::Live || parent.locked))
        }
        Reason::DoubleSpend { input, .. } | Reason::Frozen { input } | Reason::NoSuchOutput { input } => {
            let Some(outpoint) = find_outpoint(cx, child, input).await? else { return Ok(true) };
            let parents = cx.read_existing_masters(&[outpoint.txid]).await?;
            let slots = read_slots(cx, &parents, [outpoint].into_iter()).await?;
            let free = parents.first().zip(slots.get(&outpoint)).is_some_and(|(parent, slot)| is_free(parent, slot));
            Ok(!free)
        }
        // A coinbase may count by an earlier block again.
        Reason::Immature { input } => {
            let Some(outpoint) = find_outpoint(cx, child, input).await? else { return Ok(true) };
            let height = child.unmined_since().unwrap_or(u32::MAX);
            let parent = cx.master(outpoint.txid).await?;
            Ok(parent.is_none_or(|parent| parent.spending_height.is_some_and(|from| from > height)))
        }
        // The bar ends with the height, without an event of its own.
        Reason::NotYetSpendable { .. } => Ok(false),
        _ => Ok(true),
    }
}

/// Returns the output that an input of a stored transaction spends.
async fn find_outpoint(cx: &HandlerContext<'_>, page: &Page, input: u32) -> Result<Option<Outpoint>, SequencerError> {
    let inputs = read_inputs(cx, page).await?;
    Ok(inputs.into_iter().find(|(_, slot)| slot.input == input).map(|(outpoint, _)| outpoint))
}

fn list_conflicting_children(parent: &Page) -> Vec<Txid> {
    parent.master.iter().flat_map(|master| master.conflicting_children.iter().copied()).collect()
}

fn output_range(txid: Txid) -> RangeInclusive<Outpoint> {
    Outpoint { txid, vout: 0 }..=Outpoint { txid, vout: u32::MAX }
}

/// Returns whether a slot is not frozen, and has no holder or only a conflicting one: a loser's own event may take the
/// slot again before it finds its record contested.
fn is_free(master: &Page, slot: &Slot) -> bool {
    if master.frozen {
        return false;
    }
    let is_conflicting =
        |txid: &Txid| master.master.as_ref().is_some_and(|master| master.conflicting_children.contains(txid));
    match slot {
        Slot::Unspent(_) => true,
        Slot::Spent(_, holder) => is_conflicting(&holder.txid),
        Slot::Nil | Slot::Frozen(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_chance_is_known_by_its_id() {
        let (txid, other) = (Txid([1; 32]), Txid([2; 32]));
        for offset in [0, 7, u64::MAX] {
            let id = second_chance_id(offset, &txid);
            assert!(is_second_chance(&id, &txid) && !is_second_chance(&id, &other));
        }
        assert!(!is_second_chance(&[1; 16], &txid) && !is_second_chance(&[0; 16], &txid));
    }
}
