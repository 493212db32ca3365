// Shortened ids: ids may differ at any position, so no two may be shortened to the same text.

/** An id of at most `most` characters: a longer one is cut in its middle. */
export function cutId(id, most) {
  if (id.length <= most) return id;
  const tail = Math.floor((most - 1) / 2);
  return `${id.slice(0, most - 1 - tail)}…${tail > 0 ? id.slice(-tail) : ""}`;
}

/** Ids of at most `most` characters; ids that would become equal are not shortened. */
export function cutIds(ids, most) {
  const owners = new Map();
  for (const id of ids) {
    const cut = cutId(id, most);
    owners.set(cut, (owners.get(cut) ?? new Set()).add(id));
  }
  return ids.map((id) => (owners.get(cutId(id, most)).size > 1 ? id : cutId(id, most)));
}
