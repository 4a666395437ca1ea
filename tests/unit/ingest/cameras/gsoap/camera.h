// The part of ONVIF's event service that a camera with pull points needs, for soapcpp2.
#import "soap12.h"
#import "wsse.h"
#import "wsa5.h"

//gsoap tev service name: Camera
//gsoap tev service style: document
//gsoap tev service encoding: literal
//gsoap tev schema namespace: http://www.onvif.org/ver10/events/wsdl
//gsoap tev schema form: qualified
//gsoap wsnt schema namespace: http://docs.oasis-open.org/wsn/b-2
//gsoap wsnt schema form: qualified
//gsoap tt schema namespace: http://www.onvif.org/ver10/schema
//gsoap ter schema namespace: http://www.onvif.org/ver10/error

typedef char *XML;

struct wsnt__TopicExpressionType { XML __item; @char *Dialect; };
struct wsnt__Payload { _XML __any; };
struct wsnt__NotificationMessageHolderType {
    struct wsnt__TopicExpressionType *Topic;
    struct wsnt__Payload *Message;
};

struct _tev__CreatePullPointSubscription { char *InitialTerminationTime; };
struct _tev__CreatePullPointSubscriptionResponse {
    struct wsa5__EndpointReferenceType *SubscriptionReference;
    time_t wsnt__CurrentTime 1;
    time_t wsnt__TerminationTime 1;
};
struct _tev__PullMessages { char *Timeout 1; int MessageLimit 1; };
struct _tev__PullMessagesResponse {
    time_t CurrentTime 1;
    time_t TerminationTime 1;
    int __size;
    struct wsnt__NotificationMessageHolderType *wsnt__NotificationMessage;
};
struct _tev__SetSynchronizationPoint { };
struct _tev__SetSynchronizationPointResponse { };
struct _wsnt__Renew { char *TerminationTime 1; };
struct _wsnt__RenewResponse { time_t TerminationTime 1; time_t CurrentTime 1; };

int __tev__CreatePullPointSubscription(
    struct _tev__CreatePullPointSubscription *tev__CreatePullPointSubscription,
    struct _tev__CreatePullPointSubscriptionResponse *tev__CreatePullPointSubscriptionResponse);
int __tev__PullMessages(
    struct _tev__PullMessages *tev__PullMessages, struct _tev__PullMessagesResponse *tev__PullMessagesResponse);
int __tev__SetSynchronizationPoint(
    struct _tev__SetSynchronizationPoint *tev__SetSynchronizationPoint,
    struct _tev__SetSynchronizationPointResponse *tev__SetSynchronizationPointResponse);
int __tev__Renew(struct _wsnt__Renew *wsnt__Renew, struct _wsnt__RenewResponse *wsnt__RenewResponse);
