SELECT kind, name, version, removed, registered, digest, user, body
FROM mlms_manifests
WHERE kind = {kind:String} AND name = {name:String} AND version = {version:String}
