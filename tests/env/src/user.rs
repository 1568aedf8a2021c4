//! Users with given rights. The API server reads its users once, from a file, so a pool of users without any right is
//! there from the start; a test takes one and gives it roles.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};

use crate::poll::until;
use crate::{Apiserver, unique_name};

pub(crate) const ADMIN_TOKEN: &str = "admin";

/// Enough for every test of one binary; a line in a file is all that one costs.
const USERS: usize = 64;

/// A user of the API server, who may do what it was granted and nothing else.
#[derive(Debug)]
pub struct User {
    /// As the API server knows it, and as its answers with 403 say it.
    pub name: String,
    /// A kubeconfig with this user's credentials.
    pub kubeconfig: PathBuf,
}

/// Verbs on resources of one API group, in one namespace or in the whole cluster.
#[derive(Debug, Clone)]
pub struct Grant {
    namespace: Option<String>,
    group: String,
    resources: Vec<String>,
    verbs: Vec<String>,
}

impl Grant {
    /// In every namespace and for cluster-scoped resources. The core group is `""`.
    pub fn cluster(group: &str, resources: &[&str], verbs: &[&str]) -> Grant {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Grant { namespace: None, group: group.to_owned(), resources: owned(resources), verbs: owned(verbs) }
    }

    /// In one namespace only.
    pub fn namespace(namespace: &str, group: &str, resources: &[&str], verbs: &[&str]) -> Grant {
        Grant { namespace: Some(namespace.to_owned()), ..Grant::cluster(group, resources, verbs) }
    }

    fn rule(&self) -> PolicyRule {
        PolicyRule {
            api_groups: Some(vec![self.group.clone()]),
            resources: Some(self.resources.clone()),
            verbs: self.verbs.clone(),
            ..PolicyRule::default()
        }
    }
}

impl Apiserver {
    /// A new user with these rights, which hold when this returns.
    pub async fn user(&self, grants: &[Grant]) -> Result<User> {
        let number = self.users_taken.fetch_add(1, Ordering::Relaxed);
        ensure!(number < USERS, "all {USERS} users of this API server are taken");
        let user = User { name: name(number), kubeconfig: self.kubeconfig_with_token(&token(number)) };
        for grant in grants {
            self.grant(&user, grant).await?;
        }
        Ok(user)
    }

    /// Gives a user one more right, and waits until it holds.
    pub async fn grant(&self, user: &User, grant: &Grant) -> Result<()> {
        let client = self.client().await?;
        let role = unique_name(&user.name);
        let metadata = ObjectMeta {
            name: Some(role.clone()),
            labels: Some([(LABEL.to_owned(), user.name.clone())].into()),
            ..ObjectMeta::default()
        };
        let role_ref = |kind: &str| RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: kind.into(),
            name: role.clone(),
        };
        let subjects = Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "User".into(),
            name: user.name.clone(),
            namespace: None,
        }]);
        let new = PostParams::default();
        let rules = Some(vec![grant.rule()]);
        if let Some(namespace) = &grant.namespace {
            let role = Role { metadata: metadata.clone(), rules };
            Api::namespaced(client.clone(), namespace).create(&new, &role).await?;
            let binding = RoleBinding { metadata, role_ref: role_ref("Role"), subjects };
            Api::namespaced(client.clone(), namespace).create(&new, &binding).await?;
        } else {
            let role = ClusterRole { metadata: metadata.clone(), rules, aggregation_rule: None };
            Api::all(client.clone()).create(&new, &role).await?;
            let binding = ClusterRoleBinding { metadata, role_ref: role_ref("ClusterRole"), subjects };
            Api::all(client.clone()).create(&new, &binding).await?;
        }
        self.until_effective(&client, user, grant, true).await
    }

    /// Takes every right from a user, and waits until none of `grants` holds.
    pub async fn revoke(&self, user: &User, grants: &[Grant]) -> Result<()> {
        let client = self.client().await?;
        let of_user = ListParams::default().labels(&format!("{LABEL}={}", user.name));
        let all = Api::<ClusterRoleBinding>::all(client.clone());
        all.delete_collection(&DeleteParams::default(), &of_user).await?;
        for binding in Api::<RoleBinding>::all(client.clone()).list(&of_user).await? {
            let metadata = binding.metadata;
            let (namespace, name) = metadata.namespace.zip(metadata.name).context("a binding without a name")?;
            Api::<RoleBinding>::namespaced(client.clone(), &namespace).delete(&name, &DeleteParams::default()).await?;
        }
        for grant in grants {
            self.until_effective(&client, user, grant, false).await?;
        }
        Ok(())
    }

    /// The authorizer learns of a binding by a watch of its own, a moment after the write is answered.
    async fn until_effective(&self, client: &kube::Client, user: &User, grant: &Grant, allowed: bool) -> Result<()> {
        for resource in &grant.resources {
            for verb in &grant.verbs {
                let question = SubjectAccessReview {
                    spec: SubjectAccessReviewSpec {
                        user: Some(user.name.clone()),
                        resource_attributes: Some(ResourceAttributes {
                            namespace: grant.namespace.clone(),
                            group: Some(grant.group.clone()),
                            resource: Some(resource.clone()),
                            verb: Some(verb.clone()),
                            ..ResourceAttributes::default()
                        }),
                        ..SubjectAccessReviewSpec::default()
                    },
                    ..SubjectAccessReview::default()
                };
                let reviews = Api::<SubjectAccessReview>::all(client.clone());
                let what = format!("{verb} {resource} by {} is allowed: {allowed}", user.name);
                until(&what, async || {
                    let answer = reviews.create(&PostParams::default(), &question).await?;
                    Ok(answer.status.map(|status| status.allowed) == Some(allowed))
                })
                .await?;
            }
        }
        Ok(())
    }
}

const LABEL: &str = "kubetide.test/user";

fn name(number: usize) -> String {
    format!("user-{number}")
}

fn token(number: usize) -> String {
    format!("token-of-user-{number}")
}

/// The API server's file of users: token, name, uid, groups.
pub(crate) fn tokens() -> String {
    let users = (0..USERS).map(|number| format!("{},{},{}\n", token(number), name(number), name(number)));
    std::iter::once(format!("{ADMIN_TOKEN},admin,admin,\"system:masters\"\n")).chain(users).collect()
}
