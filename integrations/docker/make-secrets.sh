#!/bin/sh
# Makes what a fleet's servers must know of each other: make-secrets.sh FOLDER [NAME OF THE REDIS SERVER]
# A certificate authority and a certificate of Redis, a password for its user `agentspec`, the keys of the store and of the
# tenants' names. Nothing that is there is replaced, since what was encrypted with a key cannot be read without it.
# Needs openssl and agentspec.
set -eu
folder=$1
name=${2:-redis}
umask 077
mkdir -p "$folder"
cd "$folder"
[ -e ca.pem ] || openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=agentspec fleet" \
    -keyout ca.key -out ca.pem 2> /dev/null
if [ ! -e redis.pem ]; then
    openssl req -newkey rsa:3072 -nodes -subj "/CN=$name" -keyout redis.key -out redis.csr 2> /dev/null
    printf 'subjectAltName=DNS:%s,DNS:localhost\n' "$name" > redis.ext
    openssl x509 -req -in redis.csr -CA ca.pem -CAkey ca.key -set_serial "0x$(openssl rand -hex 16)" -days 825 \
        -extfile redis.ext -out redis.pem 2> /dev/null
    rm redis.csr redis.ext
fi
[ -e store-password ] || openssl rand -hex 32 | tr -d '\n' > store-password
[ -e store.key ] || agentspec store genkey store.key > /dev/null
[ -e namespace.key ] || agentspec store genkey namespace.key > /dev/null
# Redis gets the password's hash alone. The first words are those of the command that sets a user. Nobody can be the default
# user, but Redis 7 replays transactions of its append-only file with that user's rights, and drops them without.
[ -e users.acl ] || {
    echo "user default off ~* &* +@all"
    agentspec store acl agentspec | sed "s/^ACL SETUSER/user/; s/\$/ #$(openssl dgst -sha256 -r < store-password | cut -c1-64)/"
} > users.acl
